// SPDX-License-Identifier: Apache-2.0
// The comparison as one command: what it writes, and that it can say no.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

nlohmann::json verdict_of(const Workspace& w) {
  return nlohmann::json::parse(w.read("runs/tiny/verdict.json"));
}

/// Windows need room: the protocol refuses runs too short for two of them.
const char* kShort = "validate run.toml --quiet --set training.steps=60 --set checkpoint.every=20";

TEST(Validate, WritesProtocolArmsVerdictAndReport) {
  const Workspace w;
  const Outcome o = w.nibble(kShort);
  EXPECT_TRUE(o.code == 0 || o.code == 3 || o.code == 4) << o.code << o.output;
  for (const char* file :
       {"protocol.json", "run.toml", "verdict.json", "report.html", "baseline/metrics.jsonl",
        "candidate/metrics.jsonl", "candidate/telemetry.jsonl", "candidate_aa/metrics.jsonl"})
    EXPECT_FALSE(w.read(std::string("runs/tiny/") + file).empty()) << file;
  const auto v = verdict_of(w);
  for (const char* key : {"verdict", "relative_gap", "gap_ci95", "noise_floor", "limit", "step", "tokens",
                          "baseline", "candidate", "rule"})
    EXPECT_TRUE(v.contains(key)) << key;
  EXPECT_NE(o.output.find("report: runs/tiny/report.html"), std::string::npos) << o.output;
  const std::string html = w.read("runs/tiny/report.html");
  EXPECT_EQ(html.find("http://"), html.find("http://www.w3.org"))
      << "the page loads something from the network";
}

TEST(Validate, IdenticalArmsHaveAGapOfExactlyZero) {
  const Workspace w;
  const Outcome o = w.nibble(std::string(kShort) + " --set precision.recipe=bf16");
  EXPECT_EQ(o.code, 0) << o.output;
  const auto v = verdict_of(w);
  EXPECT_EQ(v.at("relative_gap").get<double>(), 0.0);
  EXPECT_EQ(v.at("verdict"), "pass");
  EXPECT_TRUE(v.at("identical").get<bool>());
}

TEST(Validate, APlantedFaultIsNeverACleanPass) {
  const Workspace w;
  const Outcome o = w.nibble(std::string(kShort) + " --set faults.wgrad_sign_mismatch=true");
  EXPECT_EQ(o.code, 3) << o.output;
  const auto v = verdict_of(w);
  EXPECT_NE(v.at("verdict"), "pass");
  EXPECT_NE(v.dump().find("wgrad"), std::string::npos) << "the GEMM is not named: " << v.dump(1);
}

TEST(Validate, ResumesBitForBitAfterAKill) {
  const Workspace whole, killed;
  whole.nibble(kShort);
  killed.nibble(kShort, "timeout -s KILL 1");
  killed.nibble(std::string(kShort) + " --resume");
  EXPECT_EQ(verdict_of(killed).dump(), verdict_of(whole).dump());
}

TEST(Validate, AProtocolCannotBeChangedUnderARunInProgress) {
  const Workspace w;
  w.nibble(kShort, "timeout -s KILL 1");
  const Outcome o = w.nibble(std::string(kShort) + " --resume --set protocol.limit=0.5");
  EXPECT_EQ(o.code, 2) << o.output;
  EXPECT_NE(o.output.find("protocol"), std::string::npos) << o.output;
}

}  // namespace
}  // namespace nibble::e2e
