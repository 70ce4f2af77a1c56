// SPDX-License-Identifier: Apache-2.0
// A run that changes its precision: nothing but the arithmetic changes, and a resume cannot be told from a
// run that was never stopped.
#include <gtest/gtest.h>

#include <random>

#include "io/test_dir.h"
#include "models/registry.h"
#include "train/checkpoint.h"
#include "train/run_log.h"
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
    Learner learner(stream, {.model = make_spec({.blocks = 3,
                                                 .vocab_size = kVocab,
                                                 .hidden = 32,
                                                 .ffn = 64,
                                                 .heads = 2,
                                                 .kv_heads = 2,
                                                 .head_dim = 16,
                                                 .max_sequence = kSequence,
                                                 .activation = "relu2",
                                                 .rope_theta = 10000}),
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

}  // namespace
}  // namespace nibble
