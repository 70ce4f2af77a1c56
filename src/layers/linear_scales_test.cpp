// SPDX-License-Identifier: Apache-2.0
// Linears whose products are not plain ones, and operands under amaxes that are not their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/amax_state.h"
#include "layers/linear.h"
#include "ops/finite_difference.h"

namespace nibble {
namespace {

/// y, dx and dw of one linear after some steps on the same data.
struct Bench {
  std::int64_t tokens, n, k;
  std::vector<bf16> x, w, dy;
  std::vector<float> y, dx, dw;
  float bias = 0.25f;

  Bench(std::int64_t t, std::int64_t rows, std::int64_t cols) : tokens(t), n(rows), k(cols) {
    x = normal_bf16(1, t * cols, 1);
    w = normal_bf16(2, rows * cols, 0.1);
    dy = normal_bf16(3, t * rows, 1e-2);
  }

  void run(Recipe recipe, BackendKind backend, int steps = 1, bool with_amaxes = true) {
    recipe.first_blocks = recipe.last_blocks = 0;
    HostDevice host;
    Stream stream(backend, host, 2);
    Arena arena(host);
    dw.assign(static_cast<std::size_t>(n * k), 0);
    std::vector<float> master(dw.size(), 0), biases(static_cast<std::size_t>(n), bias),
        bias_grad(biases.size(), 0);
    const LinearInfo info{
        .name = "blocks.0.mlp.up", .kind = "mlp.up", .block = 0, .blocks = 1, .n = n, .k = k};
    check_recipe(recipe, std::span(&info, 1), tokens);
    Linear linear(
        info, host,
        {.master = View<float>(master.data(), n, k),
         .compute = View<const bf16>(w.data(), n, k),
         .grad = View<float>(dw.data(), n, k)},
        {.master = View<float>(biases.data(), n), .compute = {}, .grad = View<float>(bias_grad.data(), n)});
    const AmaxState amaxes(host, 1, history_of(recipe), recipe.amax_margin);
    std::vector<bf16> y_out(static_cast<std::size_t>(tokens * n)),
        dx_out(static_cast<std::size_t>(tokens * k));
    for (int step = 0; step < steps; ++step) {
      std::fill(dw.begin(), dw.end(), 0.0f);
      Context ctx{.stream = stream,
                  .arena = arena,
                  .recipe = recipe,
                  .seq_len = tokens,
                  .step = step,
                  .weights_version = static_cast<std::uint64_t>(step)};
      if (with_amaxes) ctx.amaxes = &amaxes;
      const View<const bf16> x_TK(x.data(), tokens, k), dy_TN(dy.data(), tokens, n);
      linear.forward(ctx, x_TK, View<bf16>(y_out.data(), tokens, n));
      linear.backward(ctx, x_TK, dy_TN, View<bf16>(dx_out.data(), tokens, k));
      amaxes.push(stream, step, nullptr);
    }
    y.clear();
    dx.clear();
    for (bf16 v : y_out) y.push_back(v.value());
    for (bf16 v : dx_out) dx.push_back(v.value());
  }
};

double relative_error(const std::vector<float>& x, const std::vector<float>& exact) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - exact[i]) * (double{x[i]} - exact[i]);
    norm += double{exact[i]} * exact[i];
  }
  return std::sqrt(error / norm);
}

class LinearScalesOn : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, LinearScalesOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(LinearScalesOn, EveryKindOfScaleGivesTheProductInsideItsFormatsError) {
  Bench exact(32, 160, 288);
  exact.run(find_recipe("bf16"), GetParam());
  const struct {
    Recipe recipe;
    double bound;  ///< two operands of the format: docs/formats
  } kCases[] = {{find_recipe("fp8-deepseek"), 0.045},
                {find_recipe("fp8-delayed"), 0.075},  // E5M2 among them
                {edited(find_recipe("nvfp4"), {.tensor_scaling = TensorScaling::Row}), 0.22},
                {edited(find_recipe("nvfp4"), {.tensor_scaling = TensorScaling::Previous}), 0.22},
                {edited(find_recipe("nvfp4"), {.accumulate = Accumulation::Truncating}), 0.22},
                {edited(find_recipe("mxfp4"), {.accumulate = Accumulation::Truncating}), 0.25}};
  for (const auto& c : kCases) {
    Bench b(32, 160, 288);
    b.run(c.recipe, GetParam(), 2);
    EXPECT_LT(relative_error(b.y, exact.y), c.bound) << c.recipe.name;
    EXPECT_LT(relative_error(b.dx, exact.dx), c.bound) << c.recipe.name;
    EXPECT_LT(relative_error(b.dw, exact.dw), c.bound) << c.recipe.name;
  }
}

TEST_P(LinearScalesOn, DelayedScalesOfAConstantTensorAreItsOwn) {
  // From the second step on the history holds the amax that the tensor has.
  Recipe current = find_recipe("fp8-current");
  Bench a(32, 48, 64), b(32, 48, 64);
  a.run(current, GetParam());
  b.run(find_recipe("fp8-delayed"), GetParam(), 2);
  EXPECT_EQ(a.y, b.y);
  EXPECT_EQ(a.dx, b.dx);
  EXPECT_EQ(a.dw, b.dw);
  b.run(edited(find_recipe("fp8-delayed"), {.amax_margin = 12}), GetParam(), 2);
  EXPECT_NE(a.y, b.y) << "a margin of 12 leaves subnormals";
}

TEST_P(LinearScalesOn, TruncatingSumsLoseWhatLiesBelowTheNominalExponent) {
  // The first 16 products cancel, under scales of 448. What is left is 0.25 under the smallest scales, below
  // the last of the 35 bits: exact sums keep it.
  constexpr float kUnit = 0x1p-9f / 2688;
  Bench b(16, 16, 32);
  b.bias = 0;
  for (std::int64_t i = 0; i < 16 * 32; ++i) {
    const std::int64_t j = i % 32;
    const float half = j == 17 ? 0.5f * kUnit : 0;
    b.x[i] = bf16::nearest(j < 16 ? (j % 2 == 0 ? 1.0f : -1.0f) : j == 16 ? 6 * kUnit : half);
    b.w[i] = bf16::nearest(j < 16 ? 1.0f : j == 18 ? 6 * kUnit : half);
  }
  b.run(find_recipe("nvfp4"), BackendKind::Ref);
  for (float y : b.y) EXPECT_NEAR(y, 0x1p-20f / 2688 / 2688, 1e-15);
  b.run(edited(find_recipe("nvfp4"), {.accumulate = Accumulation::Truncating}), GetParam());
  for (float y : b.y) EXPECT_EQ(y, 0);
}

TEST(LinearScales, WithoutAmaxesOfEarlierStepsItSaysSo) {
  Bench b(16, 16, 16);
  EXPECT_NO_THROW(b.run(find_recipe("fp8-current"), BackendKind::Cpu, 1, false));
  EXPECT_THROW(b.run(find_recipe("fp8-delayed"), BackendKind::Cpu, 1, false), Error);
}

}  // namespace
}  // namespace nibble
