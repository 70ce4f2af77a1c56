// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "plan/plan_text.h"
#include "plan/recipes.h"

namespace nibble {
namespace {

PlanRequest request(const char* model, const char* recipe, const char* hardware, std::int64_t gpus) {
  PlanRequest r;
  r.model = find_plan_model(model);
  r.recipe = find_plan_recipe(recipe);
  r.hardware = find_hardware(hardware);
  r.layout.gpus = gpus;
  r.layout.global_batch = 256;
  return r;
}

std::string refusal(const PlanRequest& r) {
  try {
    make_plan(r);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
    return e.what();
  }
  return "";
}

TEST(StepTime, ItsPartsAddUpAndTheTokensFollow) {
  const Plan p = make_plan(request("llama-3.1-8b", "nvfp4", "gb200", 8));
  double sum = 0;
  for (const TimeItem& t : p.time.items) sum += t.seconds;
  EXPECT_NEAR(sum, p.time.seconds, 1e-9);
  EXPECT_NEAR(p.time.tokens_per_gpu_s, 256.0 * 8192 / 8 / p.time.seconds, 1e-6);
  EXPECT_GT(p.time.of("products, fp4"), 0);
  EXPECT_GT(p.time.of("products, bf16"), 0) << "the kept blocks";
}

TEST(StepTime, TheMixPeakLiesBetweenBf16AndFp4) {
  const Plan p = make_plan(request("llama-3.1-8b", "nvfp4", "gb200", 8));
  EXPECT_GT(p.time.mix_peak, 2500);
  EXPECT_LT(p.time.mix_peak, 10000);
  EXPECT_LT(p.time.mfu_mix, p.time.mfu_bf16);
  const Plan b = make_plan(request("llama-3.1-8b", "bf16", "gb200", 8));
  EXPECT_DOUBLE_EQ(b.time.mfu_mix, b.time.mfu_bf16);
}

TEST(StepTime, EmulatedFp4IsSlowerThanBf16AndSaysSo) {
  const Plan fp4 = make_plan(request("llama-1.2b", "nvfp4", "h200", 8));
  const Plan bf16 = make_plan(request("llama-1.2b", "bf16", "h200", 8));
  EXPECT_LT(fp4.time.tokens_per_gpu_s, bf16.time.tokens_per_gpu_s);
  ASSERT_FALSE(fp4.warnings.empty());
  EXPECT_NE(fp4.warnings[0].find("emulated"), std::string::npos);
}

TEST(StepTime, PipelineBubbleIsStagesLessOneOverChunks) {
  PlanRequest r = request("llama-3-70b", "fp8", "gb300", 64);
  r.layout.tp = 2;
  r.layout.pp = 4;
  r.layout.vp = 5;
  const Plan p = make_plan(r);
  double steady = 0;
  for (const char* part : {"products, fp8", "products, bf16", "head, bf16", "attention",
                           "norms, activations, residual", "loss", "quantise activations and gradients",
                           "quantise weights", "tensor-parallel traffic, exposed", "gaps between kernels"})
    steady += p.time.of(part);
  EXPECT_NEAR(p.time.of("pipeline bubble") / steady, 3.0 / 5 / static_cast<double>(r.layout.micro_batches()),
              1e-9);
}

TEST(QuantiseBytes, AreTheReadsAndTheCopies) {
  const QuantSpec nvfp4{.format = Format::Nvfp4}, mxfp8{.format = Format::Mxfp8E4M3}, bf16{};
  EXPECT_EQ(quantise_bytes(nvfp4, nvfp4, false), 2 + 2 + 2 * 0.5625) << "amax pass, read, two copies";
  EXPECT_EQ(quantise_bytes(mxfp8, mxfp8, false), 2 + 2 * 1.03125) << "block scales need no amax pass";
  EXPECT_EQ(quantise_bytes(bf16, bf16, false), 0);
  EXPECT_EQ(quantise_bytes(nvfp4, bf16, true), 2 + 2 + 2);
}

TEST(Memory, StatesAreSixteenBytesAParameterAndDivideByDataParallelism) {
  for (const std::int64_t gpus : {1, 8}) {
    PlanRequest r = request("llama-1.2b", "bf16", "b200", gpus);
    const Plan p = make_plan(r);
    const double n = p.work.parameters;
    EXPECT_NEAR(p.memory.of("weights, BF16"), 2 * n, 1);
    EXPECT_NEAR(p.memory.of("gradients, FP32"), 4 * n, 1);
    EXPECT_NEAR(p.memory.of("master weights, FP32") + p.memory.of("optimizer moments, FP32"),
                12 * n / static_cast<double>(gpus), 1);
    EXPECT_EQ(p.memory.of("weights, quantised copies"), 0);
  }
}

TEST(Memory, Nvfp4KeepsWgradOperandsInFourBitsWhereTheCardMultipliesThem) {
  const PlanModel model = find_plan_model("llama-3.1-8b");
  const auto kept = [&](const Recipe& recipe, const char* card) {
    return activation_bytes_per_token(make_workload(model, recipe, 8192), Recompute::None,
                                      find_hardware(card));
  };
  const double bf16 = kept(find_recipe("bf16"), "b200");
  const double nvfp4 = kept(find_plan_recipe("nvfp4-all"), "b200");
  // A block keeps, in BF16: x of qkv and up (2 x 4096), x of down (14336), residuals (2 x 4096), q k v o
  // (6144 + 4096) and the gate's two inputs (2 x 14336), two bytes each.
  EXPECT_NEAR(bf16, 32.0 * 2 * (2 * 4096 + 14336 + 2 * 4096 + 6144 + 4096 + 2 * 14336), 1);
  EXPECT_NEAR(nvfp4, 32.0 * (0.5625 * (3 * 4096 + 14336) + 2.0 * (2 * 4096 + 6144 + 4096 + 2 * 14336)), 1);
  // Emulated, the operands are exact BF16 values; attention's output is kept beside that of its linear.
  EXPECT_NEAR(kept(find_plan_recipe("nvfp4-all"), "h200"), bf16 + 32.0 * 2 * 4096, 1);
}

/// x of qkv and up (2 x 2048), residuals (2 x 2048), q k v o (4096 + 2048) and down's x (8192) in a block:
/// squared ReLU needs no input of its own. What is multiplied in another form is kept beside it.
TEST(Memory, SquaredReluKeepsItsOutputAlone) {
  const auto kept = [](const char* recipe, Recompute recompute) {
    return activation_bytes_per_token(
        make_workload(find_plan_model("llama-1.2b"), find_plan_recipe(recipe), 4096), recompute,
        find_hardware("h200"));
  };
  EXPECT_NEAR(kept("bf16", Recompute::None), 20.0 * 2 * (4 * 2048 + 4096 + 2048 + 8192), 1);
  EXPECT_NEAR(kept("bf16", Recompute::Selective), 20.0 * 2 * (2 * 2048 + 4096 + 2048 + 8192), 1);
  EXPECT_NEAR(kept("nvfp4-all", Recompute::None), 20.0 * 2 * (4 * 2048 + 4096 + 2 * 2048 + 2 * 8192), 1);
}

TEST(Memory, RecomputationNeverNeedsMore) {
  for (const char* recipe : {"bf16", "nvfp4", "mxfp8"}) {
    for (const char* model : {"llama-3.1-8b", "nemotron-h-8b"}) {
      const Workload w = make_workload(find_plan_model(model), find_plan_recipe(recipe), 8192);
      const auto kept = [&](Recompute r) { return activation_bytes_per_token(w, r, find_hardware("b200")); };
      EXPECT_GE(kept(Recompute::None), kept(Recompute::Selective));
      EXPECT_GT(kept(Recompute::Selective), kept(Recompute::Full));
    }
  }
}

TEST(Memory, TheLargestMicroBatchFitsAndTheNextDoesNot) {
  PlanRequest r = request("llama-3.1-8b", "nvfp4", "gb200", 8);
  const Plan p = make_plan(r);
  ASSERT_TRUE(p.largest_micro_batch.has_value());
  r.layout.micro_batch = *p.largest_micro_batch;
  EXPECT_TRUE(memory_of(p.work, r.layout, r.hardware).fits());
  r.layout.micro_batch *= 2;
  EXPECT_FALSE(memory_of(p.work, r.layout, r.hardware).fits());
}

TEST(Refusals, NameTheNearestLayoutAndThatLayoutWorks) {
  PlanRequest r = request("llama-3.1-8b", "nvfp4", "gb200", 12);
  r.layout.tp = 5;
  const std::string divides = refusal(r);
  EXPECT_NE(divides.find("not a multiple of tp 5"), std::string::npos) << divides;
  EXPECT_NE(divides.find("nearest layout that divides"), std::string::npos) << divides;
  r = request("llama-3-70b", "bf16", "h100", 8);
  const std::string fits = refusal(r);
  EXPECT_NE(fits.find("GiB a GPU"), std::string::npos) << fits;
  EXPECT_NE(fits.find("nearest layout that fits"), std::string::npos) << fits;
  const Workload w = make_workload(r.model, r.recipe, 8192);
  const auto near = nearest_fitting_layout(w, r.hardware, r.layout);
  ASSERT_TRUE(near.has_value());
  EXPECT_NO_THROW(check_layout(w, *near));
  EXPECT_TRUE(memory_of(w, *near, r.hardware).fits());
}

TEST(Refusals, ASparsePeakAskedAsDense) {
  PlanRequest r = request("llama-3.1-8b", "nvfp4", "gb300", 8);
  r.hardware.fp4.dense = 20000;
  EXPECT_NE(refusal(r).find("dense"), std::string::npos);
}

TEST(Search, TheChosenLayoutIsTheFastestOfThoseThatFit) {
  PlanRequest r = request("llama-3-70b", "nvfp4", "gb200", 64);
  r.search_layout = true;
  const Plan p = make_plan(r);
  for (const ParallelLayout& l : fitting_layouts(p.work, r.hardware, r.layout))
    EXPECT_GE(step_time(p.work, l, r.hardware).seconds, p.time.seconds) << l.text();
}

TEST(Search, ASweepSaysWhyAPointIsMissing) {
  PlanRequest r = request("llama-3.1-405b", "nvfp4", "gb200", 8);
  r.search_layout = true;
  const std::vector<SweepPoint> points = sweep_gpus(r, 8, 128);
  ASSERT_EQ(points.size(), 5U);
  EXPECT_FALSE(points[0].plan.has_value());
  EXPECT_FALSE(points[0].why.empty());
  EXPECT_TRUE(points[4].plan.has_value()) << points[4].why;
  EXPECT_NE(sweep_text(points).find("128"), std::string::npos);
}

TEST(Honesty, FifteenPercentInBf16CapTheProducts) {
  EXPECT_NEAR(product_gain_cap(0.15, find_hardware("gb200"), Rate::Fp4), 2.76, 0.005);
  EXPECT_NEAR(product_gain_cap(0.15, find_hardware("gb300"), Rate::Fp4), 3.43, 0.005);
  EXPECT_EQ(product_gain_cap(0.15, find_hardware("h100"), Rate::Fp4), 1);
}

TEST(Honesty, Nvfp4IsOneToOneAndAHalfTimesEightBit) {
  for (const char* hardware : {"gb200", "gb300"}) {
    for (const char* model : {"llama-3.1-8b", "llama-3-70b"}) {
      PlanRequest r = request(model, "nvfp4", hardware, 64);
      r.search_layout = true;
      const std::vector<Plan> plans = compare_plans(r, {"fp8-paper", "mxfp8", "nvfp4"});
      for (int i : {0, 1}) {
        const double gain = plans[i].hours / plans[2].hours;
        EXPECT_GT(gain, 1.0) << hardware << " " << model;
        EXPECT_LT(gain, 1.6) << hardware << " " << model;
      }
    }
  }
}

TEST(EqualLoss, TheLawIsNearWhatWasMeasured) {
  const double short_run = token_ratio(8e9, 1.2e9, 0.008);
  EXPECT_GT(short_run, 1.06);  // MLPerf: 1.08 to 1.12
  EXPECT_LT(short_run, 1.12);
  EXPECT_NEAR(token_ratio(8e9, 1e12, 0.010), 1.53, 0.02);  // published: 1.36
  EXPECT_EQ(token_ratio(8e9, 1e12, 0), 1);
  EXPECT_TRUE(std::isinf(token_ratio(8e9, 1e12, 0.2)));
}

TEST(EqualLoss, MoreTokensBringTheLossBack) {
  const LossLaw law;
  const double ratio = token_ratio(1e9, 1e11, 0.01);
  EXPECT_NEAR(law.loss(1e9, ratio * 1e11) * 1.01, law.loss(1e9, 1e11), 1e-9);
}

TEST(EqualLoss, EightBitRecipesPayNothingAndASwitchIsPricedInBf16Steps) {
  PlanRequest r = request("llama-3.1-8b", "mxfp8", "gb200", 8);
  EXPECT_EQ(make_plan(r).equal.hours, make_plan(r).hours);
  r.recipe = find_plan_recipe("nvfp4");
  const Plan fast = make_plan(r);
  EXPECT_GT(fast.equal.token_ratio, 1);
  r.recipe = find_plan_recipe("bf16");
  const Plan slow = make_plan(r);
  EXPECT_NEAR(fast.equal.switched_hours, 0.82 * fast.hours + 0.18 * slow.hours, 1e-6);
}

TEST(PlanText, SaysConventionSharesAndNotes) {
  PlanRequest r = request("llama-3.1-8b", "nvfp4", "gb200", 8);
  r.price = 3.2;
  const Plan p = make_plan(r);
  const std::string text = plan_text(p);
  for (const char* part :
       {"8030261248 parameters", "421.65 TFLOP a sample", "counted as half", "MWh", "1.0 to 1.5 times"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  double share = 0;
  for (const KindShare& k : shares_by_kind(p.work, 8192)) share += k.share;
  EXPECT_NEAR(share, 1, 1e-12);
  EXPECT_NEAR(plan_json(p)["tokens_per_gpu_s"].get<double>(), p.time.tokens_per_gpu_s, 1e-9);
}

TEST(Tokens, AreReadWithTheirUnits) {
  EXPECT_EQ(parse_tokens("10T"), 10e12);
  EXPECT_EQ(parse_tokens("1.5B"), 1.5e9);
  EXPECT_EQ(parse_tokens("300M"), 300e6);
  EXPECT_EQ(parse_tokens("1e12"), 1e12);
  EXPECT_THROW(parse_tokens("10X"), Error);
  EXPECT_THROW(parse_tokens("-1T"), Error);
}

}  // namespace
}  // namespace nibble
