// SPDX-License-Identifier: Apache-2.0
// Faults planted in training itself: each is raised as a Fault that names the layer or GEMM, or is seen in
// the first gradients; a sound run raises none.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "models/registry.h"
#include "train/learner.h"
#include "train/quant_monitor.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequence = 64, kBatch = 4;

struct Faults : Sink {
  using Sink::on;
  void on(const AlarmEvent& a) override {
    if (a.severity == Severity::Fault) all.push_back(a);
  }
  std::vector<AlarmEvent> all;
};

struct Trained {
  std::vector<double> norms;
  std::vector<AlarmEvent> faults;
};

/// Five steps of a small model, the first of them observed.
Trained trained(const RecipeEdits& edits, bool lost_micro_batches = false, const char* recipe = "nvfp4") {
  HostDevice host;
  Stream stream(BackendKind::Cpu, host, 1);
  LearnerConfig config{.model = make_spec({.blocks = 3,
                                           .vocab_size = 96,
                                           .hidden = 64,
                                           .ffn = 128,
                                           .heads = 2,
                                           .kv_heads = 2,
                                           .head_dim = 32,
                                           .max_sequence = kSequence,
                                           .activation = "relu2",
                                           .rope_theta = 10000}),
                       .recipe = edited(find_recipe(recipe), edits),
                       .optimizer = {},
                       .schedule = {.peak = 1e-4, .steps = 10},
                       .sequence = kSequence,
                       .batch = kBatch,
                       .micro_batch = 1,
                       .seed = 5,
                       .sr_seed = 6};
  config.lost_micro_batches = lost_micro_batches;
  Learner learner(stream, config);
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(kBatch * kSequence + 1);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 96);
  const View<const std::int32_t> in(ids.data(), kBatch * kSequence), out(ids.data() + 1, kBatch * kSequence);
  QuantMonitor monitor(host, {}, {});
  Faults faults;
  Trained run;
  for (int step = 0; step < 5; ++step) {
    run.norms.push_back(learner.step(in, out, step == 0 ? &monitor : nullptr).grad_norm);
    if (step == 0) monitor.finish_step(1, faults);
  }
  run.faults = faults.all;
  return run;
}

std::string texts(const Trained& run) {
  std::string all;
  for (const auto& f : run.faults) all += f.text + "\n";
  return all;
}

TEST(PlantedFaults, ASoundStepRaisesNone) { EXPECT_EQ(texts(trained({})), ""); }

TEST(PlantedFaults, RotationsThatDifferAreRaisedForTheWeightGradient) {
  const Trained run = trained({.wgrad_sign_mismatch = true});
  ASSERT_FALSE(run.faults.empty());
  EXPECT_EQ(run.faults[0].rule, "gemm_mismatch");
  for (const auto& f : run.faults) EXPECT_EQ(f.where.gemm, "wgrad") << f.text;
}

TEST(PlantedFaults, RandomBitsStuckAtZeroAreRaisedForTheGradientsAlone) {
  const Trained run = trained({.stuck_random_bits = true});
  ASSERT_FALSE(run.faults.empty());
  for (const auto& f : run.faults) {
    EXPECT_TRUE(f.rule == "rounding_bias" || f.rule == "operand_gain") << f.text;
    EXPECT_TRUE(f.where.operand.starts_with("dy")) << f.text;
    EXPECT_FALSE(f.where.layer.empty());
  }
}

TEST(PlantedFaults, AScaleReadOneBinadeOffInOneLayerIsRaisedForThatLayerAlone) {
  const Trained run = trained({.scale_binade_layers = "blocks.1.mlp.down"});
  ASSERT_FALSE(run.faults.empty());
  for (const auto& f : run.faults) EXPECT_EQ(f.where.layer, "blocks.1.mlp.down") << f.text;
}

TEST(PlantedFaults, LostMicroBatchesAreSeenInTheFirstGradients) {
  const std::vector<double> baseline = trained({}, false, "bf16").norms;
  EXPECT_FALSE(check_gradient_norms(baseline, trained({}).norms, {}));
  const auto lost = check_gradient_norms(baseline, trained({}, true).norms, {});
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->severity, Severity::Fault);
}

}  // namespace
}  // namespace nibble
