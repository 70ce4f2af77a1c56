// SPDX-License-Identifier: Apache-2.0
// One training step of both model families on the reference backend, on `cpu` and on `cuda`, from the same
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "models/parameters.h"
#include "models/registry.h"
#include "recipe/product.h"
#include "telemetry/jsonl_sink.h"
#include "train/learner.h"
#include "train/quant_monitor.h"

namespace nibble {
namespace {

struct Case {
  const char* family;
  const char* recipe;
  double bound;  ///< relative Frobenius norm of every gradient's difference
};

DecoderSpec tiny(const std::string& family) {
  ModelFields f{.vocab_size = 96,
                .hidden = 32,
                .ffn = 64,
                .heads = 2,
                .kv_heads = 1,
                .head_dim = 16,
                .max_sequence = 32};
  if (family == "llama") {
    f.blocks = 2;
    f.activation = "swiglu";
    f.rope_theta = 10000;
    f.tied = true;
  } else {
    f.pattern = "M-*-";
    f.activation = "relu2";
    f.mamba_heads = 16;
    f.mamba_head_dim = 4;
    f.mamba_groups = 2;
    f.mamba_state = 16;
    f.mamba_chunk = 16;
  }
  return make_spec(f);
}

/// What telemetry said, as the lines of its log.
struct Telemetry : Sink {
  using Sink::on;
  void on(const QuantEvent& e) override { lines.push_back(json_line(e)); }
  void on(const GemmEvent& e) override { lines.push_back(json_line(e)); }
  void on(const WeightEvent& e) override { lines.push_back(json_line(e)); }
  void on(const LayerEvent& e) override { lines.push_back(json_line(e)); }
  std::vector<std::string> lines;
};

struct Step {
  StepResult result;
  std::vector<std::string> telemetry;
  std::vector<std::string> names;
  std::vector<std::vector<float>> grads;
};

struct How {
  BackendKind backend = BackendKind::Cpu;
  int threads = 1;
  Recomputation recompute = Recomputation::None;
  bool record = true;
  int steps = 1;
  const char* switch_to = nullptr;  ///< the recipe from the third step on
  int observe = 0;                  ///< every so many steps are measured by telemetry; 0: none
  std::int64_t micro_batch = 2;
  RecipeEdits edits;
  std::int64_t inject_nan_step = -1;
  bool codes = false;  ///< the products of a card that has every format: ref and cpu decode
};

Recipe recipe_of(const Case& c, const How& how) {
  if (how.switch_to == nullptr) return edited(find_recipe(c.recipe), how.edits);
  return edited(find_recipe(c.recipe), {.switches = {{.from_step = 2, .recipe = how.switch_to}}});
}

/// The last of `steps` steps.
Step some_steps(const Case& c, const How& how) {
  const std::unique_ptr<Device> device = open_device(how.backend);
  Stream stream(how.backend, *device, how.threads);
  Learner learner(stream, {.model = tiny(c.family),
                           .recipe = recipe_of(c, how),
                           .optimizer = {},
                           .schedule = {.peak = 1e-3, .steps = 10},
                           .sequence = 32,
                           .batch = 4,
                           .micro_batch = how.micro_batch,
                           .recompute = how.recompute,
                           .seed = 5,
                           .sr_seed = 6,
                           .record_steps = how.record,
                           .decode_codes = how.codes,
                           .inject_nan_step = how.inject_nan_step});
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(4 * 32 + 1);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 96);
  Step s;
  QuantMonitor monitor(*device, {}, {});
  Telemetry telemetry;
  const auto measured = [&](std::int64_t step) { return how.observe > 0 && step % how.observe == 0; };
  const auto finish = [&] {
    s.result = learner.finish();
    if (measured(learner.steps_done() - 1)) monitor.finish_step(learner.steps_done(), telemetry);
  };
  for (int i = 0; i < how.steps; ++i) {
    learner.begin(View<const std::int32_t>(ids.data(), 128), View<const std::int32_t>(ids.data() + 1, 128),
                  measured(i) ? &monitor : nullptr);
    if (learner.in_flight() == Learner::kInFlight) finish();
  }
  while (learner.in_flight() > 0) finish();
  s.telemetry = telemetry.lines;
  for (const ParamStore::Entry& e : learner.params().entries()) {
    s.names.push_back(e.info.name);
    s.grads.push_back(learner.params().read(learner.params().grad(e)));
  }
  return s;
}

Step one_step(const Case& c, BackendKind backend, int threads) {
  return some_steps(c, {.backend = backend, .threads = threads});
}

void expect_near(const Step& ours, const Step& ref, double bound) {
  EXPECT_NEAR(ours.result.loss, ref.result.loss, bound * ref.result.loss);
  for (std::size_t p = 0; p < ref.grads.size(); ++p) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < ref.grads[p].size(); ++i) {
      error += std::pow(static_cast<double>(ours.grads[p][i]) - ref.grads[p][i], 2);
      norm += std::pow(static_cast<double>(ref.grads[p][i]), 2);
    }
    EXPECT_GT(norm, 0) << ref.names[p];
    EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm)) << ref.names[p];
  }
}

void expect_same(const Step& a, const Step& b) {
  EXPECT_EQ(a.result.loss, b.result.loss);
  EXPECT_EQ(a.result.grad_norm, b.result.grad_norm);
  EXPECT_EQ(a.grads, b.grads);
}

bool there_is_a_gpu() {
  try {
    return open_device(BackendKind::Cuda) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

class StepConformance : public ::testing::TestWithParam<Case> {};

TEST_P(StepConformance, LossAndEveryGradientAreThoseOfRefInsideTheBound) {
  const Case c = GetParam();
  const Step ref = one_step(c, BackendKind::Ref, 1);
  expect_near(one_step(c, BackendKind::Cpu, 2), ref, c.bound);
  if (there_is_a_gpu()) expect_near(one_step(c, BackendKind::Cuda, 1), ref, c.bound);
}

TEST_P(StepConformance, OneAndTwoThreadsGiveTheSameBytes) {
  expect_same(one_step(GetParam(), BackendKind::Cpu, 1), one_step(GetParam(), BackendKind::Cpu, 2));
}

TEST_P(StepConformance, WhatIsComputedAgainIsTheSameBytes) {
  for (BackendKind backend : {BackendKind::Cpu, BackendKind::Cuda}) {
    if (backend == BackendKind::Cuda && !there_is_a_gpu()) continue;
    const Step kept = some_steps(GetParam(), {.backend = backend});
    for (Recomputation recompute : {Recomputation::Light, Recomputation::Block})
      expect_same(some_steps(GetParam(), {.backend = backend, .recompute = recompute}), kept);
  }
}

/// A measured step is the step, with two of them in flight, and says the same whatever is computed again.
TEST_P(StepConformance, MeasuringChangesNoBitAndTwiceSaysTheSame) {
  for (BackendKind backend : {BackendKind::Ref, BackendKind::Cpu, BackendKind::Cuda}) {
    if (backend == BackendKind::Cuda && !there_is_a_gpu()) continue;
    const int steps = backend == BackendKind::Ref ? 1 : 4;
    const Step plain = some_steps(GetParam(), {.backend = backend, .steps = steps});
    const Step measured = some_steps(GetParam(), {.backend = backend, .steps = steps, .observe = 1});
    expect_same(measured, plain);
    EXPECT_FALSE(measured.telemetry.empty());
    expect_same(some_steps(GetParam(), {.backend = backend, .steps = steps, .observe = 2}), plain);
    const How again{.backend = backend, .recompute = Recomputation::Block, .steps = steps, .observe = 1};
    EXPECT_EQ(some_steps(GetParam(), again).telemetry, measured.telemetry);
  }
}

/// Counts of the whole batch, however it is cut.
TEST(TelemetryConformance, MicroBatchesAddUpToTheBatch) {
  const Case c{"llama", "nvfp4", 0};
  const auto count = [&](std::int64_t micro_batch) {
    std::map<std::string, int> kinds;
    const Step s = some_steps(c, {.observe = 1, .micro_batch = micro_batch});
    for (const std::string& line : s.telemetry) ++kinds[line.substr(0, line.find(','))];
    return std::pair(s.telemetry.size(), kinds);
  };
  EXPECT_EQ(count(1), count(4));
  const auto kinds = count(4).second;
  EXPECT_EQ(kinds.size(), 4u) << "tensor, gemm, weight and layer lines";
}

/// The third step is the second time that the record is issued: it must draw its own random bits.
TEST_P(StepConformance, ARecordedStepIsTheStepAndRunsRepeat) {
  if (!there_is_a_gpu()) return;  // the test of label "gpu" that asks for one fails instead
  const Step recorded = some_steps(GetParam(), {.backend = BackendKind::Cuda, .steps = 4});
  expect_same(some_steps(GetParam(), {.backend = BackendKind::Cuda, .record = false, .steps = 4}), recorded);
  expect_same(some_steps(GetParam(), {.backend = BackendKind::Cuda, .steps = 4}), recorded);
}

/// Both directions; each precision is recorded and issued again.
TEST(SwitchConformance, ARecordOfTheOldPrecisionIsNotIssuedInTheNew) {
  if (!there_is_a_gpu()) return;  // as above
  for (const auto& [from, to] : {std::pair{"bf16", "nvfp4"}, std::pair{"nvfp4", "bf16"}}) {
    const Case c{"llama", from, 0};
    How how{.backend = BackendKind::Cuda, .steps = 6, .switch_to = to};
    const Step recorded = some_steps(c, how);
    how.record = false;
    expect_same(some_steps(c, how), recorded);
  }
}

/// What has state of its own, or products of its own: threads, recomputation and recording change no bit, and
/// every backend is near the reference. In its first step delayed scaling quantises gradients in subnormal
/// E5M2, where one code is a large part of a value. Native FP8 accumulates fprop in about 13 bits.
TEST(ScalingConformance, ThreadsRecomputationRecordsAndBackendsAgree) {
  const struct {
    Case c;
    RecipeEdits edits;
  } kRuns[] = {{{"llama", "fp8-delayed", 0.2}, {}},
               {{"llama", "fp8-deepseek", 5e-2}, {}},
               {{"llama", "fp8-current", 0.1}, {.bf16_first = 0, .bf16_last = 0}},
               {{"llama", "mxfp8", 5e-2}, {}},
               {{"hybrid", "nvfp4", 5e-2}, {.rht = false}},
               {{"llama", "nvfp4", 5e-2}, {.tensor_scaling = TensorScaling::Previous}},
               {{"llama", "nvfp4", 5e-2}, {.accumulate = Accumulation::Truncating}},
               {{"llama", "bf16", 5e-2}, {.attention_qk = Format::Nvfp4, .attention_pv = Format::Fp8E4M3}},
               {{"hybrid", "bf16", 5e-2}, {.attention_qk = Format::Fp8E4M3, .attention_pv = Format::Nvfp4}}};
  for (const auto& run : kRuns) {
    SCOPED_TRACE(run.c.recipe);
    const Step one = some_steps(run.c, {.steps = 2, .edits = run.edits});
    expect_same(some_steps(run.c, {.threads = 2, .steps = 2, .edits = run.edits}), one);
    for (Recomputation recompute : {Recomputation::Light, Recomputation::Block})
      expect_same(some_steps(run.c, {.recompute = recompute, .steps = 2, .edits = run.edits}), one);
    const Step ref = some_steps(run.c, {.backend = BackendKind::Ref, .edits = run.edits});
    expect_near(some_steps(run.c, {.edits = run.edits}), ref, run.c.bound);
    if (!there_is_a_gpu()) continue;  // as above
    expect_near(some_steps(run.c, {.backend = BackendKind::Cuda, .edits = run.edits}), ref, run.c.bound);
    How how{.backend = BackendKind::Cuda, .steps = 4, .edits = run.edits};
    const Step recorded = some_steps(run.c, how);
    how.record = false;
    expect_same(some_steps(run.c, how), recorded);
  }
}

/// Mixers read the sum that the norms write, not a copy of it. What is rounded at every sublayer is a few
/// 2^-9 of a gradient, and under nvfp4 the codes that this moves; a gradient that a mixer read too early or
/// too late would be another one altogether.
TEST(ResidualGradientConformance, InBf16TheStepIsNearThatInFp32WhoeverComputesIt) {
  for (const Case& c : {Case{"llama", "bf16", 1e-2}, Case{"hybrid", "bf16", 1e-2},
                        Case{"llama", "nvfp4", 0.1}, Case{"hybrid", "nvfp4", 0.1}}) {
    SCOPED_TRACE(std::string(c.family) + " " + c.recipe);
    const RecipeEdits narrow{.residual_gradient = Format::Bf16};
    const Step ref = some_steps(c, {.backend = BackendKind::Ref, .edits = narrow});
    const Step wide = some_steps(c, {.backend = BackendKind::Ref});
    EXPECT_EQ(ref.result.loss, wide.result.loss) << "the forward pass knows nothing of it";
    EXPECT_NE(ref.grads, wide.grads) << "rounded nowhere";
    expect_near(ref, wide, 2 * c.bound);
    for (const BackendKind backend : {BackendKind::Cpu, BackendKind::Cuda}) {
      if (backend == BackendKind::Cuda && !there_is_a_gpu()) continue;  // as above
      expect_near(some_steps(c, {.backend = backend, .edits = narrow}), ref, c.bound);
      const Step kept = some_steps(c, {.backend = backend, .steps = 3, .edits = narrow});
      for (const Recomputation recompute : {Recomputation::Light, Recomputation::Block})
        expect_same(some_steps(c, {.backend = backend, .recompute = recompute, .steps = 3, .edits = narrow}),
                    kept);
      expect_same(
          some_steps(
              c,
              {.backend = backend, .threads = 2, .record = false, .steps = 3, .observe = 1, .edits = narrow}),
          kept);
    }
  }
}

/// Under `non_finite = "as_te"` nobody hands an amax over, since a NaN would not count: every quantiser looks
/// for its own. Of finite numbers it is the same one, so an amax of another matrix, or of an earlier step or
/// micro-batch, would show.
TEST(HandedAmaxConformance, AStepWhoseQuantisersLookForEveryAmaxHasTheSameBytes) {
  const struct {
    const char* recipe;
    RecipeEdits edits;
  } kRuns[] = {{"nvfp4", {.bf16_first = 0, .bf16_last = 0}},
               {"nvfp4", {.rht = false, .bf16_first = 0, .bf16_last = 0}},
               {"fp8-current", {.bf16_first = 0, .bf16_last = 0}},
               {"fp8-current", {.bf16_first = 0, .bf16_last = 0, .residual_gradient = Format::Bf16}},
               {"fp8-delayed", {}},
               {"mxfp8", {}}};
  for (const auto& run : kRuns)
    for (const char* family : {"llama", "hybrid"})
      // The second step has the amaxes of the first. On a GPU it is recorded, and the third issues the
      // record.
      for (const auto& [backend, steps] : {std::pair{BackendKind::Ref, 1}, std::pair{BackendKind::Cpu, 2},
                                           std::pair{BackendKind::Cuda, 3}}) {
        if (backend == BackendKind::Cuda && !there_is_a_gpu()) continue;
        const Case c{family, run.recipe, 0};
        How how{.backend = backend, .steps = steps, .edits = run.edits};
        if (std::string(family) == "hybrid" && std::string(run.recipe) == "mxfp8")
          how.edits.keep_bf16 = {"*.mamba.in"};  // 208 rows are not blocks of 32
        how.edits.non_finite = NonFinite::AsTe;
        const Step alone = some_steps(c, how);
        how.edits.non_finite = std::nullopt;
        for (Recomputation recompute : {Recomputation::None, Recomputation::Light, Recomputation::Block}) {
          SCOPED_TRACE(fmt::format("{} of {} on {}, recomputation {}", run.recipe, family, name_of(backend),
                                   static_cast<int>(recompute)));
          if (backend == BackendKind::Ref && recompute != Recomputation::None) break;  // slow
          how.recompute = recompute;
          expect_same(some_steps(c, how), alone);
        }
      }
}

/// The planted NaN comes after the amax of that gradient was found.
TEST(HandedAmaxConformance, ANaNPutInLaterIsFoundInTheOperandThatReadsItFirst) {
  for (const char* recipe : {"fp8-current", "mxfp8", "nvfp4"})
    for (BackendKind backend : {BackendKind::Ref, BackendKind::Cpu, BackendKind::Cuda}) {
      if (backend == BackendKind::Cuda && !there_is_a_gpu()) continue;
      RecipeEdits edits;
      if (std::string(recipe) != "mxfp8") edits.bf16_first = edits.bf16_last = 0;
      try {
        some_steps({"llama", recipe, 0}, {.backend = backend, .edits = edits, .inject_nan_step = 0});
        ADD_FAILURE() << recipe << " on " << name_of(backend) << ": the NaN went through";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("blocks.1.mlp.down: the dgrad operand dy"), std::string::npos)
            << e.what();
      }
    }
}

/// The step of a Blackwell, decoded: the same copies in the same order of sums, so the same bytes, and what
/// telemetry says of them too. Products whose shapes no tensor core takes are in it: mamba.in has 208 rows.
TEST(NativeConformance, AStepOfStoredCodesIsTheStepOfExactOperands) {
  const struct {
    Case c;
    RecipeEdits edits;
    int native;  ///< of the quantised GEMMs
  } kRuns[] = {{{"llama", "nvfp4", 0}, {}, 12},
               {{"hybrid", "nvfp4", 0}, {}, 17},
               {{"llama", "nvfp4-4over6", 0}, {}, 12},
               {{"llama", "mxfp8", 0}, {}, 24},
               {{"hybrid", "mxfp8", 0}, {.keep_bf16 = {"*.mamba.in"}}, 21}};
  for (const auto& run : kRuns) {
    SCOPED_TRACE(std::string(run.c.family) + " " + run.c.recipe);
    const Recipe recipe = recipe_of(run.c, {.edits = run.edits});
    EXPECT_EQ(count_products(recipe, linears(tiny(run.c.family)), 0, 64, native_gemm(100)).native,
              run.native);
    for (const BackendKind backend : {BackendKind::Ref, BackendKind::Cpu}) {
      const int steps = backend == BackendKind::Ref ? 1 : 2;
      const How plain{.backend = backend, .steps = steps, .observe = 1, .edits = run.edits};
      How codes = plain;
      codes.codes = true;
      const Step emulated = some_steps(run.c, plain), coded = some_steps(run.c, codes);
      expect_same(coded, emulated);
      EXPECT_EQ(coded.telemetry, emulated.telemetry);
      if (backend == BackendKind::Ref) continue;
      codes.recompute = Recomputation::Block;
      codes.threads = 2;
      expect_same(some_steps(run.c, codes), emulated);
    }
  }
}

// FP32: rounding of sums. BF16: activations that round the other way (half an ulp, 2^-9, of single elements).
// NVFP4: such an element can move a four-bit code or a block scale, so the bound is looser by the size of a
// step.
INSTANTIATE_TEST_SUITE_P(BothFamilies, StepConformance,
                         ::testing::Values(Case{"llama", "fp32", 1e-5}, Case{"hybrid", "fp32", 1e-5},
                                           Case{"llama", "bf16", 1e-2}, Case{"hybrid", "bf16", 1e-2},
                                           Case{"llama", "nvfp4", 5e-2}, Case{"hybrid", "nvfp4", 5e-2}),
                         [](const auto& info) {
                           return std::string(info.param.family) + "_" + info.param.recipe;
                         });

}  // namespace
}  // namespace nibble
