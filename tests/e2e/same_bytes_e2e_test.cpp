// SPDX-License-Identifier: Apache-2.0
// A run is a function of its configuration: threads, interruptions and crashes do not change a bit of it.
#include <gtest/gtest.h>

#include <random>

#include "run_tool.h"

namespace nibble::e2e {
namespace {

/// Bytes of the weights and Adam states after the last step.
std::string final_state(const Workspace& w, const std::string& run = "runs/tiny",
                        const char* step = "step_00000020") {
  const std::string dir = run + "/checkpoints/" + step + "/";
  const std::string weights = w.read(dir + "model/model.safetensors");
  EXPECT_FALSE(weights.empty()) << dir;
  return weights + w.read(dir + "optimizer.safetensors");
}

void expect_ok(const Outcome& o) { ASSERT_EQ(o.code, 0) << o.output; }

class TrainingIsAFunction : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    reference_ = new Workspace;
    expect_ok(reference_->nibble("train run.toml"));
  }
  static void TearDownTestSuite() {
    delete reference_;
    reference_ = nullptr;
  }
  static std::string reference() { return final_state(*reference_); }
  static Workspace* reference_;
};
Workspace* TrainingIsAFunction::reference_ = nullptr;

TEST_F(TrainingIsAFunction, ForOneAndTwoThreads) {
  const Workspace w;
  expect_ok(w.nibble("train run.toml --threads 1"));
  EXPECT_EQ(final_state(w), reference());
}

TEST_F(TrainingIsAFunction, OnAnyRunOfTheSameConfigurationAndNotForAnotherSeed) {
  const Workspace again, other;
  expect_ok(again.nibble("train run.toml"));
  expect_ok(other.nibble("train run.toml --set precision.sr_seed=2"));
  EXPECT_EQ(final_state(again), reference());
  EXPECT_NE(final_state(other), reference()) << "the rounding key must matter";
}

TEST_F(TrainingIsAFunction, AfterASignalAndAResume) {
  // Long enough that the signal arrives in the middle; the loop ends with the process at the latest.
  const char* run = "train run.toml --set training.steps=300 --set checkpoint.every=100";
  const Workspace whole, stopped;
  expect_ok(whole.nibble(run));
  const Outcome o =
      shell("cd " + stopped.path().string() + "; " NIBBLE_BINARY " " + run +
            " & pid=$!; while kill -0 $pid && ! grep -q '\"step\":20,' runs/tiny/metrics.jsonl; "
            "do sleep 0.01; done; kill -TERM $pid; wait $pid");
  ASSERT_EQ(o.code, 128 + 15) << o.output;
  EXPECT_NE(o.output.find("--resume"), std::string::npos) << o.output;
  expect_ok(stopped.nibble(std::string(run) + " --resume"));
  EXPECT_EQ(final_state(stopped, "runs/tiny", "step_00000300"),
            final_state(whole, "runs/tiny", "step_00000300"));
}

TEST_F(TrainingIsAFunction, AfterKillsAtTwentyRandomMoments) {
  const Workspace w;
  std::mt19937 random(20250929);
  int killed = 0;
  for (int i = 0; i < 20; ++i) {
    const double seconds = std::uniform_real_distribution<>(0.005, 0.25)(random);
    const Outcome o = w.nibble("train run.toml --resume", "timeout -s KILL " + std::to_string(seconds));
    killed += o.code != 0;
  }
  EXPECT_GT(killed, 0) << "every run finished before it was killed: the test saw nothing";
  expect_ok(w.nibble("train run.toml --resume"));
  EXPECT_EQ(final_state(w), reference());
  EXPECT_FALSE(std::filesystem::exists(w.path() / "runs/tiny.previous-1"));
}

TEST_F(TrainingIsAFunction, ALogAfterAResumeHoldsEveryStepOnce) {
  const Workspace w;
  w.nibble("train run.toml", "timeout -s KILL 0.2");
  expect_ok(w.nibble("train run.toml --resume"));
  std::istringstream log(w.read("runs/tiny/metrics.jsonl"));
  std::map<std::string, int> steps;
  for (std::string line; std::getline(log, line);)
    if (line.find("\"type\":\"train\"") != std::string::npos)
      ++steps[line.substr(0, line.find(",\"tokens\""))];
  EXPECT_EQ(steps.size(), 20u);
  for (const auto& [line, count] : steps) EXPECT_EQ(count, 1) << line;
}

TEST_F(TrainingIsAFunction, AResumeUnderAnotherConfigurationIsRefused) {
  const Workspace w;
  expect_ok(w.nibble("train run.toml"));
  const Outcome o = w.nibble("train run.toml --resume --set optimizer.lr=1e-3");
  EXPECT_EQ(o.code, 2) << o.output;
  EXPECT_NE(o.output.find("another run"), std::string::npos) << o.output;
}

TEST_F(TrainingIsAFunction, AFullDiskStopsTheRunAndLeavesTheLastCheckpointGood) {
  const Workspace w;
  const Outcome stopped =
      shell("cd " + w.path().string() +
            "; " NIBBLE_BINARY
            " train run.toml & pid=$!; while kill -0 $pid && ! [ -e "
            "runs/tiny/checkpoints/step_00000005 ]; do sleep 0.002; done; kill -KILL $pid");
  ASSERT_TRUE(std::filesystem::exists(w.path() / "runs/tiny/checkpoints/step_00000005")) << stopped.output;
  // From here on no file may grow beyond 40 KiB: the next checkpoint cannot be written. The log of telemetry,
  // which is longer already, is left alone.
  w.write("limited.sh", "trap '' XFSZ; ulimit -f 40; exec " NIBBLE_BINARY
                        " train run.toml --resume --set telemetry.every=0\n");
  const Outcome o = shell("cd " + w.path().string() + " && bash limited.sh");
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("step_0000"), std::string::npos) << o.output;
  EXPECT_TRUE(std::filesystem::exists(w.path() / "runs/tiny/checkpoints/step_00000005"));
  expect_ok(w.nibble("train run.toml --resume"));
  EXPECT_EQ(final_state(w), reference());
}

TEST_F(TrainingIsAFunction, ASwitchOfPrecisionChangesNothingThatCameBefore) {
  const Workspace w;
  expect_ok(
      w.nibble("train run.toml --set checkpoint.keep=10 --set 'precision.override=[{from_step=10, "
               "format=\"bf16\"}]'"));
  const Workspace plain;
  expect_ok(plain.nibble("train run.toml --set checkpoint.keep=10"));
  EXPECT_EQ(final_state(w, "runs/tiny", "step_00000010"), final_state(plain, "runs/tiny", "step_00000010"));
  EXPECT_NE(final_state(w), final_state(plain));
}

TEST_F(TrainingIsAFunction, AResumeWithEveryCheckpointDamagedIsRefused) {
  const Workspace w;
  expect_ok(w.nibble("train run.toml --set checkpoint.keep=1"));
  w.write("runs/tiny/checkpoints/step_00000020/state.json", "{}");
  const Outcome o = w.nibble("train run.toml --resume --set checkpoint.keep=1");
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("damaged"), std::string::npos) << o.output;
}

TEST_F(TrainingIsAFunction, AFlippedBitInAnyFileOfACheckpointIsDetectedAndTheOlderOneIsUsed) {
  const Workspace w;
  expect_ok(w.nibble("train run.toml"));
  const std::filesystem::path newest = w.path() / "runs/tiny/checkpoints/step_00000020";
  for (const auto& file : std::filesystem::recursive_directory_iterator(newest)) {
    if (!file.is_regular_file()) continue;
    const std::string name = std::filesystem::relative(file.path(), w.path()).string();
    std::string bytes = w.read(name);
    const std::string kept = bytes;
    bytes[bytes.size() / 2] ^= 4;
    w.write(name, bytes);
    const Outcome o = w.nibble("train run.toml --resume --set training.steps=20");
    EXPECT_EQ(o.code, 0) << name << o.output;
    EXPECT_NE(o.output.find("skipping"), std::string::npos) << name << o.output;
    EXPECT_EQ(final_state(w), reference()) << name << ": trained again from the older checkpoint";
    w.write(name, kept);
  }
}

}  // namespace
}  // namespace nibble::e2e
