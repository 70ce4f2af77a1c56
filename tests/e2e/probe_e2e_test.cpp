// SPDX-License-Identifier: Apache-2.0
// From a trained checkpoint to lines that a configuration takes, and token shards that outlive their text.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

TEST(Probe, ProposesLinesThatAConfigurationTakes) {
  const Workspace w;
  ASSERT_EQ(w.nibble("train run.toml --set telemetry.every=0").code, 0);
  const Outcome o = w.nibble(
      "probe runs/tiny/checkpoints/step_00000020 --batches 1 --budget 0.4 --json probe.json --toml "
      "keep.toml");
  ASSERT_EQ(o.code, 0) << o.output;
  for (const char* said : {"blocks.0.mamba.in", "by position, same budget", "keep_bf16 = ["})
    EXPECT_NE(o.output.find(said), std::string::npos) << said << "\n" << o.output;
  const auto j = nlohmann::json::parse(w.read("probe.json"));
  EXPECT_EQ(j.at("step"), 20);
  EXPECT_EQ(j.at("layers").size(), 8u);
  EXPECT_LE(j.at("held_out").at("proposed").at("flops_share").get<double>(), 0.4 + 1e-9);
  w.write("kept.toml",
          w.read("run.toml").substr(0, w.read("run.toml").find("[precision]")) + w.read("keep.toml"));
  const Outcome explained = w.nibble("explain kept.toml");
  EXPECT_EQ(explained.code, 0) << explained.output;

  EXPECT_EQ(w.nibble("probe runs/tiny/checkpoints/step_00000020 --recipe bf16").code, 2);
  EXPECT_EQ(w.nibble("probe runs/tiny").code, 2) << "no checkpoint";
}

TEST(Data, ShardsServeWithoutTheTextTheyCameFrom) {
  const Workspace w;
  const Outcome o = w.nibble("data run.toml");
  ASSERT_EQ(o.code, 0) << o.output;
  EXPECT_NE(o.output.find("bytes a token"), std::string::npos) << o.output;
  const std::string folder = o.output.substr(0, o.output.find(' '));
  std::filesystem::remove(w.path() / "text.txt");
  EXPECT_EQ(w.nibble("data run.toml").code, 2) << "the text is gone";
  const Outcome again = w.nibble("data run.toml --set data.prepared=" + folder);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(w.nibble("data run.toml --set data.prepared=.").code, 2);
}

}  // namespace
}  // namespace nibble::e2e
