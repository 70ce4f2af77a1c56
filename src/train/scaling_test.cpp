// SPDX-License-Identifier: Apache-2.0
// Scales that come from earlier steps, and sums as hardware makes them, inside training runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "io/test_dir.h"
#include "models/parameters.h"
#include "train/checkpoint.h"
#include "train/learner.h"
#include "train/setup.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kSequence = 32, kBatch = 2, kVocab = 96, kTokens = kBatch * kSequence;

/// A learner with its device, fed with the batch of its step.
struct Trained {
  HostDevice host;
  Stream stream;
  Learner learner;

  explicit Trained(const Recipe& recipe, BackendKind backend = BackendKind::Cpu, std::int64_t micro_batch = 1)
      : stream(backend, host, 1),
        learner(stream, {.model = tiny_model(3, kVocab, kSequence),
                         .recipe = recipe,
                         .optimizer = {},
                         .schedule = {.peak = 1e-2, .steps = 20},
                         .sequence = kSequence,
                         .batch = kBatch,
                         .micro_batch = micro_batch,
                         .seed = 5,
                         .sr_seed = 6}) {}
  double train(std::int64_t until) {
    double loss = 0;
    while (learner.steps_done() < until) {
      std::mt19937 random(static_cast<unsigned>(learner.steps_done()) + 1);
      std::vector<std::int32_t> ids(kTokens + 1);
      for (auto& id : ids) id = static_cast<std::int32_t>(random() % kVocab);
      loss = learner
                 .step(View<const std::int32_t>(ids.data(), kTokens),
                       View<const std::int32_t>(ids.data() + 1, kTokens), nullptr)
                 .loss;
    }
    return loss;
  }
  std::string weights() const { return weights_hash(learner.params()); }
  std::vector<float> amaxes(std::int64_t position) {
    std::vector<float> all = on_host(host, learner.amaxes()->history_of(position));
    const std::vector<float> used = on_host(host, learner.amaxes()->used_of(position));
    all.insert(all.end(), used.begin(), used.end());
    return all;
  }
  fs::path save(const fs::path& root) {
    return save_checkpoint(root, learner, {.step = learner.steps_done(), .tokens = 0, .identity = {}}, {}, {},
                           0);
  }
};

Recipe delayed(int history = 4) { return edited(find_recipe("fp8-delayed"), {.amax_history = history}); }

TEST(DelayedScaling, ResumesBitForBitWithItsHistories) {
  const TestDir directory;
  for (const Recipe& recipe :
       {delayed(), edited(find_recipe("nvfp4"), {.tensor_scaling = TensorScaling::Previous})}) {
    Trained whole(recipe), first(recipe), second(recipe);
    whole.train(7);
    first.train(4);
    load_checkpoint(first.save(directory / recipe.name), second.learner);
    second.train(7);
    EXPECT_EQ(second.weights(), whole.weights()) << recipe.name;
    for (std::int64_t position = 0; position < whole.learner.amaxes()->linears(); ++position)
      EXPECT_EQ(second.amaxes(position), whole.amaxes(position)) << recipe.name << ", linear " << position;
  }
}

TEST(DelayedScaling, WithoutItsHistoriesAResumedRunWouldBeAnother) {
  const TestDir directory;
  Trained whole(delayed()), first(delayed()), second(delayed());
  whole.train(6);
  first.train(4);
  // A checkpoint of the same weights that another recipe wrote has no amaxes: they begin anew.
  Trained other(find_recipe("bf16"));
  load_checkpoint(first.save(directory / "delayed"), other.learner);
  const fs::path without = other.save(directory / "other");
  EXPECT_FALSE(fs::exists(without / "amaxes.safetensors"));
  load_checkpoint(without, second.learner);
  second.train(6);
  EXPECT_NE(second.weights(), whole.weights());
}

TEST(DelayedScaling, RefusesAHistoryOfAnotherLength) {
  const TestDir directory;
  Trained first(delayed(4)), second(delayed(5));
  first.train(1);
  const fs::path saved = first.save(directory / "run");
  EXPECT_THROW(load_checkpoint(saved, second.learner), Error);
}

TEST(DelayedScaling, UsesTheLargestOfTheStepsBefore) {
  Trained run(delayed(3));
  constexpr std::int64_t kOperands = AmaxState::kOperandsOfALinear;
  std::vector<std::vector<float>> histories;
  for (std::int64_t step = 0; step < 5; ++step) {
    run.train(step + 1);
    const std::vector<float> all = run.amaxes(3);
    for (std::int64_t o = 0; o < kOperands; ++o) {
      const float used = all[kOperands * 3 + o];
      if (step == 0) {
        EXPECT_EQ(used, o == 2 || o == 4 ? 57344 : 448) << "dy is E5M2; the scale of the first step is 1";
      } else {
        const auto begin = histories.back().begin() + o * 3;
        EXPECT_EQ(used, *std::max_element(begin, begin + 3)) << "operand " << o << ", step " << step;
      }
      EXPECT_GT(all[o * 3 + step % 3], 0) << "operand " << o << ", step " << step;
    }
    histories.push_back(all);
  }
}

TEST(DelayedScaling, MicroBatchesShareTheStepsAmax) {
  Trained one(delayed(), BackendKind::Cpu, 2), two(delayed(), BackendKind::Cpu, 1);
  one.train(1);
  two.train(1);
  // Forward operands of the first step are the same in both; the larger amax of the halves is that of the
  // whole.
  for (const std::int64_t o : {0, 1})
    EXPECT_EQ(one.amaxes(0)[o * 4], two.amaxes(0)[o * 4]) << "operand " << o;
}

TEST(DelayedScaling, LearnsAsCurrentScalingDoes) {
  Trained current(find_recipe("fp8-current")), with_history(delayed(16));
  EXPECT_NEAR(with_history.train(8), current.train(8), 0.05);
}

TEST(DelayedScaling, KeysOfAnotherRecipeAreRefused) {
  EXPECT_THROW(edited(find_recipe("fp8-current"), {.amax_history = 5}), Error);
  EXPECT_THROW(edited(find_recipe("fp8-current"), {.tensor_scaling = TensorScaling::Previous}), Error);
}

TEST(TensorScale, EveryKindIsARunOfItsOwnAndIsExplained) {
  std::vector<std::string> seen;
  for (const TensorScaling scaling :
       {TensorScaling::Tensor, TensorScaling::Row, TensorScaling::Previous, TensorScaling::Unit}) {
    const Recipe recipe = edited(find_recipe("nvfp4"), {.tensor_scaling = scaling});
    Trained run(recipe);
    EXPECT_TRUE(std::isfinite(run.train(3)));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), run.weights()), 0) << static_cast<int>(scaling);
    seen.push_back(run.weights());
    const std::string text = explain(recipe, linears(tiny_model(3, kVocab, kSequence)), 0, 0);
    const char* words[] = {"nvfp4.te", "row-scaled", "delayed", "previous-amax", "unscaled"};
    EXPECT_NE(text.find(words[static_cast<int>(scaling)]), std::string::npos) << text;
  }
  Trained plain(find_recipe("nvfp4"));
  plain.train(3);
  EXPECT_EQ(seen[0], plain.weights());
}

/// At K of 64 FP32 sums of ordinary data are exact, and so are truncated ones: what the model changes is
/// tested in layers/linear_scales_test.cpp and ops/gemm/matmul_truncating_test.cpp.
TEST(Accumulate, TruncatingSumsRunOnRefAndCpuAndStayNear) {
  for (const char* name : {"nvfp4", "mxfp4"}) {
    const Recipe exact = find_recipe(name);
    const Recipe cut = edited(exact, {.accumulate = Accumulation::Truncating});
    for (const BackendKind backend : {BackendKind::Ref, BackendKind::Cpu}) {
      Trained a(exact, backend), b(cut, backend);
      EXPECT_NEAR(b.train(2), a.train(2), 5e-3) << name;
    }
  }
  EXPECT_THROW(edited(find_recipe("fp8-current"), {.accumulate = Accumulation::Truncating}), Error);
  EXPECT_NO_THROW(edited(find_recipe("bf16"),
                         {.overrides = {{.format = Format::Nvfp4}}, .accumulate = Accumulation::Truncating}));
}

TEST(PrecisionKeys, BecomeTheRecipe) {
  const auto recipe = [](const std::string& keys) {
    return candidate_recipe(parse_run_config("[precision]\n" + keys, "run.toml"));
  };
  const Recipe r = recipe(
      "recipe = \"nvfp4\"\ntensor_scale = \"previous\"\naccumulate = \"truncating\"\n"
      "attention_qk = \"fp8\"\nattention_pv = \"mxfp8\"\nattention_backward = false\n");
  EXPECT_EQ(r.wgrad.b.tensor_scaling, TensorScaling::Previous);
  EXPECT_EQ(r.accumulate, Accumulation::Truncating);
  EXPECT_EQ(r.attention, (AttentionRecipe{Format::Fp8E4M3, Format::Mxfp8E4M3, false}));
  const Recipe d = recipe("recipe = \"fp8-delayed\"\namax_history = 16\namax_margin = -1\n");
  EXPECT_EQ(d.amax_history, 16);
  EXPECT_EQ(d.amax_margin, -1);
  for (const char* wrong : {"tensor_scale = \"rows\"\n", "accumulate = \"fp16\"\n",
                            "attention_qk = \"fp4\"\n", "recipe = \"fp8-delayed\"\namax_history = 0\n",
                            "recipe = \"fp8-delayed\"\namax_margin = 31\n", "attention_backward = true\n"})
    EXPECT_THROW(recipe(wrong), Error) << wrong;
}

TEST(Accumulate, ExplainSaysWhichSumsRan) {
  const std::vector<LinearInfo> all = linears(tiny_model(3, kVocab, kSequence));
  const Recipe cut = edited(find_recipe("nvfp4"), {.accumulate = Accumulation::Truncating});
  EXPECT_NE(explain(cut, all, 0, 0).find("Blackwell's FP4 pipe"), std::string::npos);
  EXPECT_EQ(explain(find_recipe("nvfp4"), all, 0, 0).find("FP4 pipe"), std::string::npos);
}

}  // namespace
}  // namespace nibble
