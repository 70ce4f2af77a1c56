// SPDX-License-Identifier: Apache-2.0
// The ablation as one command: what it writes, that it ranks, and that --resume does not train again.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

const char* kShort =
    "ablate run.toml --quiet --set training.steps=40 --set schedule.decay_fraction=0.3 "
    "--set telemetry.every=0 --without rht,bf16_blocks --arms 'exact=precision.sr_exact=true' --json "
    "copy.json";

TEST(Ablate, WritesArmsTableFiguresAndPlot) {
  const Workspace w;
  const Outcome o = w.nibble(kShort);
  ASSERT_EQ(o.code, 0) << o.output;
  for (const char* arm : {"baseline", "full", "full_aa", "no_rht", "no_bf16_blocks", "exact"}) {
    for (const char* file : {"run.toml", "metrics.jsonl"})
      EXPECT_FALSE(w.read(std::string("runs/tiny/") + arm + "/" + file).empty()) << arm << " " << file;
  }
  const auto j = nlohmann::json::parse(w.read("runs/tiny/ablation.json"));
  ASSERT_EQ(j.at("rows").size(), 5u);
  double before = -1;
  for (const auto& row : j.at("rows")) {
    const double gap = row.at("gap").is_null() ? 0 : row.at("gap").at("mean").get<double>();
    EXPECT_GE(gap, before) << "not ranked by gap";
    before = gap;
  }
  EXPECT_EQ(w.read("copy.json"), w.read("runs/tiny/ablation.json"));
  const std::string svg = w.read("runs/tiny/ablation.svg");
  EXPECT_EQ(svg.rfind("<svg xmlns='http://www.w3.org/2000/svg'", 0), 0u) << svg.substr(0, 80);
  EXPECT_NE(svg.find(">no_bf16_blocks<"), std::string::npos);
  EXPECT_EQ(svg.find("http", 12 + 30), std::string::npos) << "the plot loads something";
  for (const char* said : {"ASSUMED", "WARNING", "Noise floor", "single ingredients"})
    EXPECT_NE(o.output.find(said), std::string::npos) << said << "\n" << o.output;

  const Outcome again = w.nibble(std::string(kShort) + " --resume");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("no_rht is finished already"), std::string::npos) << again.output;
  EXPECT_EQ(w.read("copy.json"), w.read("runs/tiny/ablation.json"));
}

TEST(Ablate, RefusesWhatCannotBeComparedBeforeAnythingIsTrained) {
  const Workspace w;
  for (const char* arguments :
       {"ablate run.toml --without hadamard", "ablate run.toml --arms x=training.batch=8",
        "ablate run.toml --set precision.recipe=bf16",
        // Rows of 208 do not hold blocks of 32.
        "ablate run.toml --arms x=precision.recipe=mxfp4"}) {
    const Outcome o = w.nibble(arguments);
    EXPECT_EQ(o.code, 2) << arguments << o.output;
  }
  EXPECT_TRUE(w.read("runs/tiny/protocol.json").empty());
}

}  // namespace
}  // namespace nibble::e2e
