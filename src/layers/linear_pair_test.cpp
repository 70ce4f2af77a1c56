// SPDX-License-Identifier: Apache-2.0
// A linear that makes both copies of x in forward against the same linear that makes one in forward and one
// in backward: the bits, and what must be kept between the two.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "layers/amax_state.h"
#include "layers/linear.h"
#include "ops/finite_difference.h"

namespace nibble {
namespace {

constexpr std::int64_t kT = 64, kN = 96, kK = 160;
constexpr NativeGemm kNone{}, kAll{.fp8 = true, .fp4 = true, .mxfp8 = true};

/// Asks for everything.
struct Watcher final : QuantObserver {
  OperandSums* operand(const LinearInfo&, Gemm, Operand, const QuantSpec&) override { return &sums; }
  DifferenceSums* product(const LinearInfo&, Gemm) override { return &differences; }
  OperandSums sums;
  DifferenceSums differences;
};

struct How {
  NativeGemm native = kNone;
  QuantObserver* observer = nullptr;
  Recomputation recompute = Recomputation::None;
  bool overwrites = false;  ///< x is lost between forward and backward
};

struct Result {
  std::vector<float> y, dx, dw;
  bool keeps_x = false;
};

/// Two steps of two micro-batches; y and dx are the last one's.
Result run(BackendKind backend, Recipe recipe, const How& how) {
  recipe.first_blocks = recipe.last_blocks = 0;
  HostDevice host;
  Stream stream(backend, host, 2);
  Arena arena(host);
  const std::vector<bf16> x = normal_bf16(1, 2 * kT * kK, 1), w = normal_bf16(2, kN * kK, 0.1),
                          dy = normal_bf16(3, kT * kN, 1e-2);
  std::vector<bf16> y(kT * kN), dx(kT * kK);
  std::vector<float> dw(kN * kK);
  const LinearInfo info{
      .name = "blocks.0.mlp.up", .kind = "mlp.up", .block = 0, .blocks = 1, .n = kN, .k = kK};
  Linear linear(info, host,
                {.compute = View<const bf16>(w.data(), kN, kK), .grad = View<float>(dw.data(), kN, kK)});
  const AmaxState amaxes(host, 1, history_of(recipe), recipe.amax_margin);
  Result r;
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const ArenaScope micro_batch(arena);
      Context ctx{.stream = stream,
                  .arena = arena,
                  .recipe = recipe,
                  .seq_len = kT,
                  .step = step,
                  .first_token = micro * kT,
                  .sr_seed = 7,
                  .first_wgrad = micro == 0,
                  .recompute = how.recompute,
                  .native = how.native};
      ctx.amaxes = &amaxes;
      ctx.observer = how.observer;
      std::vector<bf16> mine(x.begin() + micro * kT * kK, x.begin() + (micro + 1) * kT * kK);
      const View<const bf16> x_TK(mine.data(), kT, kK), dy_TN(dy.data(), kT, kN);
      r.keeps_x = linear.keeps_x(ctx);
      linear.forward(ctx, x_TK, View<bf16>(y.data(), kT, kN));
      if (how.overwrites)
        std::fill(mine.begin(), mine.end(), bf16::nearest(std::numeric_limits<float>::quiet_NaN()));
      linear.backward(ctx, x_TK, dy_TN, View<bf16>(dx.data(), kT, kK));
    }
    amaxes.push(stream, step, nullptr);
  }
  for (const bf16& e : y) r.y.push_back(e.value());
  for (const bf16& e : dx) r.dx.push_back(e.value());
  r.dw = dw;
  return r;
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.y, b.y) << what;
  EXPECT_EQ(a.dx, b.dx) << what;
  EXPECT_EQ(a.dw, b.dw) << what;
}

Recipe nvfp4(const RecipeEdits& edits) { return edited(find_recipe("nvfp4"), edits); }

std::vector<Recipe> made_in_forward() {
  return {find_recipe("nvfp4"),
          nvfp4({.rht = false, .sr = false}),
          nvfp4({.rht_size = 128, .rht_signs = RotationSigns::Redrawn, .rht_gemms = kAllGemms}),
          nvfp4({.tensor_scaling = TensorScaling::Row}),
          find_recipe("nvfp4-4over6"),
          find_recipe("fp8-current"),
          find_recipe("mxfp8")};
}

/// Unquantised, under amaxes of other steps, with FP32 block scales, without its mean, of the forward copy.
std::vector<Recipe> made_in_backward() {
  return {find_recipe("bf16"), find_recipe("fp8-delayed"), find_recipe("fp8-deepseek"), find_recipe("averis"),
          find_recipe("quartet2")};
}

class LinearPairOn : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, LinearPairOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(LinearPairOn, CopiesMadeInOneReadingAreThoseMadeInForwardAndBackward) {
  std::vector<Recipe> all = made_in_forward();
  for (const Recipe& recipe : made_in_backward()) all.push_back(recipe);
  for (const Recipe& recipe : all)
    for (const NativeGemm& native : {kNone, kAll}) {
      const Result plain = run(GetParam(), recipe, {.native = native});
      Watcher watcher;
      expect_same(run(GetParam(), recipe, {.native = native, .observer = &watcher}), plain, recipe.name);
      expect_same(run(GetParam(), recipe, {.native = native, .recompute = Recomputation::Light}), plain,
                  recipe.name);
    }
}

TEST_P(LinearPairOn, WhatNeedNotBeKeptMayBeOverwrittenBeforeBackward) {
  for (const Recipe& recipe : made_in_forward())
    for (const NativeGemm& native : {kNone, kAll}) {
      const Result plain = run(GetParam(), recipe, {.native = native});
      EXPECT_FALSE(plain.keeps_x) << recipe.name;
      expect_same(run(GetParam(), recipe, {.native = native, .overwrites = true}), plain, recipe.name);
    }
}

TEST(LinearPair, XIsKeptWhereTheCopyForWgradIsMadeInBackward) {
  for (const Recipe& recipe : made_in_backward())
    EXPECT_TRUE(run(BackendKind::Cpu, recipe, {}).keeps_x) << recipe.name;
  Watcher watcher;
  const Recipe fp8 = find_recipe("fp8-current");
  EXPECT_TRUE(run(BackendKind::Cpu, fp8, {.observer = &watcher}).keeps_x) << "an observer is shown it";
  EXPECT_FALSE(run(BackendKind::Cpu, fp8, {.recompute = Recomputation::Light}).keeps_x) << "it is made again";
  EXPECT_FALSE(run(BackendKind::Cpu, find_recipe("bf16"), {.recompute = Recomputation::Light}).keeps_x);
}

}  // namespace
}  // namespace nibble
