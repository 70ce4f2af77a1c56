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

TEST(Validate, EveryPlantedFaultIsNamedAndNeverACleanPass) {
  // Fault, and what the first fault that is raised names.
  const std::pair<const char*, const char*> kFaults[] = {
      {"faults.stuck_random_bits=true", "operand dy"},
      {"faults.scale_binade_layers=\"blocks.1.*\"", "blocks.1."},
      {"faults.lost_micro_batches=true", "the gradients of the first 5 steps are 0."},
  };
  for (const auto& [fault, named] : kFaults) {
    const Workspace w;
    const Outcome o = w.nibble(std::string(kShort) + " --set '" + fault + "'");
    EXPECT_EQ(o.code, 3) << fault << o.output;
    const auto v = verdict_of(w);
    EXPECT_NE(v.at("verdict"), "pass") << fault;
    bool found = false;
    for (const auto& alarm : v.at("alarms"))
      found |= alarm.at("severity") == "fault" &&
               alarm.at("text").get<std::string>().find(named) != std::string::npos;
    EXPECT_TRUE(found) << fault << ": " << v.at("alarms").dump(1);
  }
}

TEST(Validate, ASoundRunRaisesNoFault) {
  const Workspace w;
  w.nibble(kShort);
  for (const auto& alarm : verdict_of(w).at("alarms"))
    EXPECT_NE(alarm.at("severity"), "fault") << alarm.dump();
}

/// Starts a comparison and kills it once `file` exists.
void kill_when_there_is(const Workspace& w, const std::string& file, const std::string& arguments) {
  const Outcome o = shell("cd " + w.path().string() + "; " NIBBLE_BINARY " " + arguments +
                          " & pid=$!; while kill -0 $pid && ! [ -e runs/tiny/" + file +
                          " ]; do sleep 0.002; done; kill -KILL $pid; wait $pid");
  ASSERT_EQ(o.code, 128 + 9) << "it finished before it was killed: the test saw nothing\n" << o.output;
}

TEST(Validate, ResumesBitForBitAfterAKillInTheMiddleOfTheCandidate) {
  const Workspace whole, killed;
  whole.nibble(kShort);
  kill_when_there_is(killed, "candidate/checkpoints/step_00000040", kShort);
  killed.nibble(std::string(kShort) + " --resume");
  EXPECT_EQ(verdict_of(killed).dump(1), verdict_of(whole).dump(1));
  EXPECT_EQ(killed.read("runs/tiny/candidate/telemetry.jsonl"),
            whole.read("runs/tiny/candidate/telemetry.jsonl"));
}

TEST(Validate, TheAbortRuleCountsAcrossAResume) {
  // A limit that no candidate meets: the rule fires at its third look, and a resume changes nothing.
  const std::string arguments =
      std::string(kShort) + " --set protocol.limit=1e-9 --set faults.wgrad_sign_mismatch=true";
  const Workspace w;
  w.nibble(arguments);
  const auto first = verdict_of(w);
  ASSERT_EQ(first.at("verdict"), "aborted") << first.dump(1);
  const Outcome o = w.nibble(arguments + " --resume");
  EXPECT_EQ(o.code, 3) << o.output;
  EXPECT_EQ(verdict_of(w).dump(1), first.dump(1));
}

TEST(Validate, AProtocolCannotBeChangedUnderARunInProgress) {
  const Workspace w;
  kill_when_there_is(w, "candidate/metrics.jsonl", kShort);
  const Outcome o = w.nibble(std::string(kShort) + " --resume --set protocol.limit=0.5");
  EXPECT_EQ(o.code, 2) << o.output;
  EXPECT_NE(o.output.find("protocol"), std::string::npos) << o.output;
}

TEST(Validate, ARunWhoseProtocolWasChangedAfterwardsSaysSoOnTheFirstLineOfItsReport) {
  const Workspace w;
  w.nibble(kShort);
  const std::string protocol = w.read("runs/tiny/protocol.json"), config = w.read("runs/tiny/run.toml");
  const auto first_line = [&] {
    const Outcome o = w.nibble("report runs/tiny");
    return o.output.substr(0, o.output.find('\n'));
  };
  EXPECT_EQ(first_line(), "") << "nothing was changed";
  auto edited = nlohmann::json::parse(protocol);
  for (auto& window : edited["windows"]) window["limit"] = 0.5;
  w.write("runs/tiny/protocol.json", edited.dump(1));
  EXPECT_NE(first_line().find("CHANGED AFTER THE RUN, NOT PRE-REGISTERED: protocol.json"), std::string::npos);
  EXPECT_NE(w.read("runs/tiny/report.html").find("CHANGED AFTER THE RUN"), std::string::npos);
  w.write("runs/tiny/protocol.json", protocol);
  EXPECT_EQ(first_line(), "") << "and changed back";
  std::string other = config;
  const std::size_t lr = other.find("\nlr = ");
  ASSERT_NE(lr, std::string::npos) << config;
  other.replace(lr, other.find('\n', lr + 1) - lr, "\nlr = 0.5");
  w.write("runs/tiny/run.toml", other);
  EXPECT_NE(first_line().find("run.toml is not the configuration that was trained"), std::string::npos);
}

TEST(Validate, ANoiseFloorOfAnEarlierRunCountsAndThatOfAnotherExperimentIsRefused) {
  const Workspace w;
  const Outcome first = w.nibble(kShort);
  const std::string floor = w.read("runs/tiny/noise_floor.json");
  ASSERT_FALSE(floor.empty()) << first.output;
  const std::string again = std::string(kShort) + " --noise-floor floor.json --set training.seed=7";
  w.write("floor.json", floor);
  w.nibble(again);
  EXPECT_EQ(nlohmann::json::parse(w.read("runs/tiny/noise_floor.json")).at("arms"), 2);
  EXPECT_NE(verdict_of(w).at("noise_source").get<std::string>().find("1 arms of them stored"),
            std::string::npos)
      << verdict_of(w).at("noise_source");
  const Outcome refused = w.nibble(again + " --set optimizer.lr=1e-3");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("optimizer.lr"), std::string::npos) << refused.output;
  // Named by the configuration it is used likewise, but under another setting it is left out, and that is
  // said.
  const Outcome other =
      w.nibble(std::string(kShort) + " --set 'protocol.noise_floor=\"floor.json\"' --set optimizer.lr=2e-3");
  EXPECT_NE(other.output.find("protocol.noise_floor is not used"), std::string::npos) << other.output;
  EXPECT_EQ(nlohmann::json::parse(w.read("runs/tiny/noise_floor.json")).at("arms"), 1);
}

TEST(Validate, ArmsThatSawOtherBatchesAreNotCompared) {
  const Workspace w;
  w.nibble(kShort);
  std::string log = w.read("runs/tiny/baseline/metrics.jsonl");
  const std::size_t hash = log.find("\"batch_hash\":\"") + 15;
  log[hash] = log[hash] == '0' ? '1' : '0';
  w.write("runs/tiny/baseline/metrics.jsonl", log);
  const Outcome o = w.nibble(std::string(kShort) + " --resume");
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("different batches in step 1"), std::string::npos) << o.output;
}

TEST(Validate, EveryArmsConfigurationIsItsOwn) {
  const Workspace w;
  w.nibble(kShort);
  EXPECT_NE(w.read("runs/tiny/baseline/run.toml").find("recipe = \"bf16\""), std::string::npos);
  EXPECT_NE(w.read("runs/tiny/candidate/run.toml").find("recipe = \"nvfp4\""), std::string::npos);
  EXPECT_NE(w.read("runs/tiny/candidate/run.toml"), w.read("runs/tiny/candidate_aa/run.toml"));
  const Outcome o = w.nibble("train runs/tiny/candidate_aa/run.toml --set training.name=alone");
  EXPECT_EQ(o.code, 0) << o.output;
}

}  // namespace
}  // namespace nibble::e2e
