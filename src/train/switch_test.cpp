// SPDX-License-Identifier: Apache-2.0
// A run that changes its precision: nothing but the arithmetic changes, and a resume cannot be told from a
// run that was never stopped.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>

#include "io/test_dir.h"
#include "models/registry.h"
#include "train/checkpoint.h"
#include "train/run_log.h"
#include "train/tiny_model.h"
#include "train/trainer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSequence = 32, kBatch = 2, kSteps = 6, kSwitch = 3;
constexpr int kVocab = 272;  // above the 258 of the byte tokenizer, a multiple of 16

struct SwitchCounter final : Sink {
  using Sink::on;
  void on(const SwitchEvent& e) override { seen.push_back(e); }
  std::vector<SwitchEvent> seen;
};

/// A host that records as a GPU does: what was recorded is done when it is replayed, and finds all memory
/// there.
class RecordingHost final : public Device {
 public:
  BackendKind kind() const override { return host_.kind(); }
  void* allocate(std::size_t bytes) override {
    check(!replaying_, "{} bytes were asked for while a step is recorded", bytes);
    return host_.allocate(bytes);
  }
  void free(void* p) noexcept override { host_.free(p); }
  void* allocate_host(std::size_t bytes) override { return host_.allocate_host(bytes); }
  void free_host(void* p) noexcept override { host_.free_host(p); }
  void copy_from_host(void* to, const void* from, std::size_t n) override {
    host_.copy_from_host(to, from, n);
  }
  void copy_to_host(void* to, const void* from, std::size_t n) override { host_.copy_to_host(to, from, n); }
  void send_to_host(void* to, const void* from, std::size_t n) override { host_.send_to_host(to, from, n); }
  void copy(void* to, const void* from, std::size_t n) override { host_.copy(to, from, n); }
  void zero(void* p, std::size_t n) override { host_.zero(p, n); }
  std::uint64_t mark() override { return host_.mark(); }
  void wait(std::uint64_t mark) override { host_.wait(mark); }
  std::unique_ptr<Recording> record(const std::function<void()>& issue) override {
    ++records;
    return std::make_unique<Record>(*this, issue);
  }
  int records = 0, replays = 0;

 private:
  class Record final : public Recording {
   public:
    Record(RecordingHost& host, std::function<void()> issue) : host_(host), issue_(std::move(issue)) {}
    void replay() override {
      ++host_.replays;
      host_.replaying_ = true;
      issue_();
      host_.replaying_ = false;
    }

   private:
    RecordingHost& host_;
    std::function<void()> issue_;
  };
  HostDevice host_;
  bool replaying_ = false;
};

DecoderSpec tiny() { return tiny_model(3, kVocab, kSequence); }

class SwitchedRun : public ::testing::Test {
 protected:
  SwitchedRun() {
    std::mt19937 random(7);
    std::vector<TokenId> ids(2000);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % 256);
    TokenShardWriter shard(directory_ / "tokens", tokenizer_.vocab_size(), 1);
    shard.add_document(ids);
    shard.finish();
  }

  static Recipe forward_switch() {
    return edited(find_recipe("nvfp4"),
                  {.switches = {{.from_step = kSwitch, .gemms = {true, false, false}, .recipe = "bf16"}}});
  }

  /// Trains, or goes on, until the end or after the evaluation at `stop`. Returns what the console saw.
  std::vector<SwitchEvent> train(const std::string& name, const Recipe& recipe, std::int64_t stop = kSteps,
                                 bool resume = false) {
    const TokenStream stream_of_tokens({directory_ / "tokens"});
    const SampleOrder order(stream_of_tokens, kSequence, 3, kVocab);
    const FixedSequences validation(stream_of_tokens, kSequence, 2, kVocab);
    HostDevice host;
    Stream stream(BackendKind::Cpu, host, 1);
    Learner learner(stream, {.model = tiny(),
                             .recipe = recipe,
                             .optimizer = {},
                             .schedule = {.peak = 1e-2, .steps = kSteps},
                             .sequence = kSequence,
                             .batch = kBatch,
                             .micro_batch = kBatch,
                             .seed = 5,
                             .sr_seed = 6});
    RunPlan plan;
    plan.directory = directory_ / name;
    plan.eval_steps = {stop};
    plan.checkpoint_every = 1;
    plan.checkpoint_keep = 0;
    plan.resume = resume;
    const auto console = std::make_shared<SwitchCounter>();
    const SignalGuard signals;
    run_training(learner, {order, validation, tokenizer_}, plan, console, signals,
                 [&](const EvalEvent& e) { return e.step == stop && stop < kSteps; });
    return console->seen;
  }

  fs::path checkpoint(const std::string& name, std::int64_t step) const {
    return directory_ / name / "checkpoints" / checkpoint_name(step);
  }
  std::string weights(const std::string& name, std::int64_t step) const {
    return read_file(checkpoint(name, step) / "model" / "model.safetensors");
  }
  std::string states(const std::string& name, std::int64_t step) const {
    return read_file(checkpoint(name, step) / "optimizer.safetensors");
  }
  RunLog log(const std::string& name) const { return read_run_log(directory_ / name / "metrics.jsonl"); }

  void expect_as_uninterrupted(const std::string& name) const {
    EXPECT_EQ(weights(name, kSteps), weights("whole", kSteps));
    EXPECT_EQ(states(name, kSteps), states("whole", kSteps));
    const RunLog whole = log("whole"), here = log(name);
    ASSERT_EQ(here.switches.size(), 1u) << name;
    EXPECT_EQ(here.switches[0].step, kSwitch);
    ASSERT_EQ(here.train.size(), whole.train.size());
    for (std::size_t i = 0; i < here.train.size(); ++i) {
      EXPECT_EQ(here.train[i].loss, whole.train[i].loss);
      EXPECT_EQ(here.train[i].batch_hash, whole.train[i].batch_hash);
    }
  }

  TestDir directory_;
  Tokenizer tokenizer_ = Tokenizer::bytes();
};

TEST_F(SwitchedRun, HasTheWeightsStatesAndDataOfTheRunWithoutTheSwitchUpToIt) {
  train("plain", find_recipe("nvfp4"));
  const std::vector<SwitchEvent> seen = train("whole", forward_switch());
  EXPECT_EQ(weights("whole", kSwitch), weights("plain", kSwitch));
  EXPECT_EQ(states("whole", kSwitch), states("plain", kSwitch));
  EXPECT_NE(weights("whole", kSwitch + 1), weights("plain", kSwitch + 1));

  const RunLog plain = log("plain"), whole = log("whole");
  ASSERT_EQ(plain.train.size(), static_cast<std::size_t>(kSteps));
  ASSERT_EQ(whole.train.size(), plain.train.size());
  for (std::size_t i = 0; i < whole.train.size(); ++i) {
    EXPECT_EQ(whole.train[i].batch_hash, plain.train[i].batch_hash) << i;
    EXPECT_EQ(whole.train[i].loss == plain.train[i].loss, i < kSwitch) << i;
  }
  EXPECT_TRUE(plain.switches.empty());
  ASSERT_EQ(whole.switches.size(), 1u);
  EXPECT_EQ(whole.switches[0].step, kSwitch);
  EXPECT_EQ(whole.switches[0].from, "nvfp4");
  EXPECT_EQ(whole.switches[0].to, "bf16");
  EXPECT_EQ(whole.switches[0].what, "forward");
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].step, kSwitch);
}

TEST_F(SwitchedRun, ResumedBeforeAtOrAfterTheSwitchIsTheUninterruptedRun) {
  train("whole", forward_switch());
  for (const std::int64_t stop : {kSwitch - 1, kSwitch, kSwitch + 1}) {
    const std::string name = "stopped_" + std::to_string(stop);
    const std::size_t before = train(name, forward_switch(), stop).size();
    const std::size_t after = train(name, forward_switch(), kSteps, true).size();
    expect_as_uninterrupted(name);
    EXPECT_EQ(before, stop >= kSwitch ? 1u : 0u);
    EXPECT_EQ(after, stop <= kSwitch ? 1u : 0u) << "the console of the run that takes the step hears of it";
  }
}

TEST_F(SwitchedRun, GoneOnFromAnOlderCheckpointSaysItOnce) {
  train("whole", forward_switch());
  for (const std::int64_t step : {kSwitch - 1, kSwitch}) {
    const std::string name = "again_" + std::to_string(step);
    fs::copy(directory_ / "whole", directory_ / name, fs::copy_options::recursive);
    for (std::int64_t later = step + 1; later <= kSteps; ++later) fs::remove_all(checkpoint(name, later));
    train(name, forward_switch(), kSteps, true);
    expect_as_uninterrupted(name);
  }
}

TEST(SwitchedStep, FindsTheMemoryOfTheNewPrecisionBeforeItIsRecordedAnew) {
  RecordingHost host;
  Stream stream(BackendKind::Cpu, host, 1);
  Learner learner(stream,
                  {.model = tiny(),
                   .recipe = edited(find_recipe("bf16"), {.switches = {{.from_step = 3, .recipe = "nvfp4"}}}),
                   .optimizer = {},
                   .schedule = {.peak = 1e-3, .steps = kSteps},
                   .sequence = kSequence,
                   .batch = 1,
                   .micro_batch = 1});
  const std::vector<std::int32_t> ids(kSequence, 7);
  const View<const std::int32_t> tokens(ids.data(), kSequence);
  for (std::int64_t step = 0; step < kSteps; ++step) learner.step(tokens, tokens, nullptr);
  EXPECT_EQ(host.records, 2);
  EXPECT_EQ(host.replays, kSteps - 2) << "all but the first step of each precision";
}

}  // namespace
}  // namespace nibble
