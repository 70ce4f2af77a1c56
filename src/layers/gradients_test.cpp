// SPDX-License-Identifier: Apache-2.0
// Every layer's backward against central differences of its forward, in FP32 on the reference backend.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "layers/attention.h"
#include "layers/head.h"
#include "layers/mamba2.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequences = 2, kLength = 6, kTokens = kSequences * kLength, kWidth = 8;

/// Parameters and activations of a layer under test, with names for the failure messages.
class Bench {
 public:
  Bench() : stream(BackendKind::Ref, host, 1), arena(host) {}

  Param param(const std::string& name, std::vector<std::int64_t> shape, float scale = 0.5f, float shift = 0) {
    const Layout layout =
        shape.size() == 1 ? Layout::contiguous(shape[0]) : Layout::contiguous(shape[0], shape[1]);
    Param p;
    p.master = {fresh(name, layout.numel(), scale, shift), layout};
    p.grad = {grads.back().data(), layout};
    p.compute = View<const float>(p.master);
    return p;
  }

  Context context() {
    return {.stream = stream,
            .arena = arena,
            .recipe = find_recipe("fp32"),
            .activation = DType::F32,
            .residual = DType::F32,
            .seq_len = kLength};
  }

  /// Checks d(sum of weights * forward())/d(each stored value) for every parameter and for x.
  template <class Forward, class Backward>
  void check(const Forward& forward, const Backward& backward) {
    forward();
    for (auto& g : grads) std::fill(g.begin(), g.end(), 0.0f);
    backward();
    const std::vector<std::vector<float>> analytic(grads.begin(), grads.end());
    for (std::size_t p = 0; p < values.size(); ++p) check_tensor(forward, p, analytic[p]);
  }

  HostDevice host;
  Stream stream;
  Arena arena;
  std::vector<std::string> names;
  std::deque<std::vector<float>> values, grads;

 private:
  float* fresh(const std::string& name, std::int64_t n, float scale, float shift) {
    std::normal_distribution<float> normal(shift, scale);
    names.push_back(name);
    values.emplace_back(static_cast<std::size_t>(n));
    grads.emplace_back(static_cast<std::size_t>(n));
    for (float& v : values.back()) v = normal(random_);
    return values.back().data();
  }

  template <class Forward>
  static double slope(const Forward& forward, float& value, float h) {
    const float kept = value;
    value = kept + h;
    const double up = forward();
    value = kept - h;
    const double down = forward();
    value = kept;
    return (up - down) / (2.0 * h);
  }

  template <class Forward>
  void check_tensor(const Forward& forward, std::size_t p, const std::vector<float>& analytic) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < values[p].size(); ++i) {
      // Two central differences, extrapolated: the error is of order h^4 where one alone has h^2.
      const double numeric =
          (4 * slope(forward, values[p][i], 5e-3f) - slope(forward, values[p][i], 1e-2f)) / 3;
      error += (analytic[i] - numeric) * (analytic[i] - numeric);
      norm += numeric * numeric;
    }
    // FP32 values: rounding of about 1e-7 over the smaller step is well below 1e-3.
    EXPECT_LE(std::sqrt(error), 3e-3 * std::sqrt(norm) + 1e-5) << names[p];
    EXPECT_GT(norm, 0) << names[p] << " has no effect: the test cannot see its gradient";
  }

  std::mt19937 random_{7};
};

double dot(ConstRealView y, const std::vector<float>& weights) {
  double sum = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) sum += static_cast<const float*>(y.data())[i] * weights[i];
  return sum;
}

/// x and the loss weights are parameters too: x's analytic gradient is put where its finite difference is.
void check_mixer(Bench& b, Mixer& mixer) {
  const Param x = b.param("x", {kTokens, kWidth}, 1.0f);
  std::vector<float> weights(kTokens * kWidth);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(0.7f * static_cast<float>(i));
  std::vector<float> y(kTokens * kWidth);
  const View<float> y_TD(y.data(), kTokens, kWidth);
  const auto forward = [&] {
    b.arena.rewind({});
    Context ctx = b.context();
    mixer.forward(ctx, x.compute, y_TD);
    return dot(y_TD, weights);
  };
  const auto backward = [&] {
    Context ctx = b.context();
    mixer.backward(ctx, x.compute, View<const float>(weights.data(), kTokens, kWidth), x.grad);
  };
  b.check(forward, backward);
}

Linear make_linear(Bench& b, const std::string& name, std::int64_t n, std::int64_t k, bool bias = false) {
  LinearInfo info{.name = name, .kind = name, .block = 0, .blocks = 1, .n = n, .k = k, .position = 0};
  const Param w = b.param(name + ".weight", {n, k});
  return Linear(info, b.host, w, bias ? b.param(name + ".bias", {n}) : Param{});
}

TEST(LayerGradients, SwiGluMlp) {
  Bench b;
  Linear up = make_linear(b, "up", 2 * 12, kWidth), down = make_linear(b, "down", kWidth, 12);
  Mlp mlp({.hidden = 12, .activation = Activation::SwiGlu}, std::move(up), std::move(down));
  check_mixer(b, mlp);
}

TEST(LayerGradients, SquaredReluMlp) {
  Bench b;
  Linear up = make_linear(b, "up", 12, kWidth), down = make_linear(b, "down", kWidth, 12);
  Mlp mlp({.hidden = 12, .activation = Activation::Relu2}, std::move(up), std::move(down));
  check_mixer(b, mlp);
}

TEST(LayerGradients, GroupedQueryAttentionWithRopeAndBias) {
  Bench b;
  const RopeSpec rope{.theta = 100, .llama3 = Llama3Rope{.factor = 4, .original_max_positions = 16}};
  const AttentionSpec spec{.heads = 4, .kv_heads = 2, .head_dim = 4, .qkv_bias = true, .rope = rope};
  Linear qkv = make_linear(b, "qkv", (4 + 2 * 2) * 4, kWidth, true), out = make_linear(b, "out", kWidth, 16);
  AttentionLayer attention(spec, std::move(qkv), std::move(out),
                           std::make_shared<RopeTable>(b.host, rope, 4, kLength));
  check_mixer(b, attention);
}

void check_mamba(std::int64_t norm_groups, bool conv_bias) {
  Bench b;
  const Mamba2Spec spec{.heads = 4,
                        .head_dim = 2,
                        .groups = 2,
                        .state = 3,
                        .conv_kernel = 3,
                        .conv_bias = conv_bias,
                        .norm_groups = norm_groups,
                        .chunk = 4};
  Linear in = make_linear(b, "in", spec.in_rows(), kWidth), out = make_linear(b, "out", kWidth, spec.inner());
  const Mamba2::Params params{
      .conv_weight_CK = b.param("conv.weight", {spec.conv_channels(), spec.conv_kernel}),
      .conv_bias_C = conv_bias ? b.param("conv.bias", {spec.conv_channels()}) : Param{},
      .dt_bias_H = b.param("dt_bias", {spec.heads}, 0.3f, -1.0f),
      .a_log_H = b.param("A_log", {spec.heads}, 0.3f, 0.5f),
      .d_H = b.param("D", {spec.heads}),
      .norm_weight = b.param("gated_norm.weight", {spec.inner()}, 0.3f, 1.0f)};
  Mamba2 mamba(spec, 1e-5f, std::move(in), std::move(out), params);
  check_mixer(b, mamba);
}

TEST(LayerGradients, Mamba2WithTheGroupedNormOfNemotronH) { check_mamba(2, true); }
TEST(LayerGradients, Mamba2WithTheUngroupedNorm) { check_mamba(1, false); }

TEST(LayerGradients, NormAddsIntoTheResidualGradient) {
  Bench b;
  Norm norm(b.param("weight", {kWidth}, 0.3f, 1.0f), 1e-5f);
  const Param x = b.param("x", {kTokens, kWidth}, 1.0f);
  std::vector<float> y(kTokens * kWidth), weights(kTokens * kWidth);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(0.7f * static_cast<float>(i));
  const View<float> y_TD(y.data(), kTokens, kWidth);
  b.check(
      [&] {
        b.arena.rewind({});
        Context ctx = b.context();
        norm.forward(ctx, x.compute, y_TD);
        return dot(y_TD, weights);
      },
      [&] {
        Context ctx = b.context();
        norm.backward(ctx, View<const float>(weights.data(), kTokens, kWidth), x.grad, {});
      });
}

TEST(LayerGradients, HeadAndLossTogetherWithIgnoredTokens) {
  Bench b;
  constexpr std::int64_t kVocab = 7;
  Head head(b.param("weight", {kVocab + 2, kWidth}), kVocab);
  const Param x = b.param("x", {kTokens, kWidth}, 1.0f);
  std::vector<std::int32_t> targets(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) targets[t] = t == 3 ? -1 : static_cast<std::int32_t>(t % kVocab);
  std::vector<float> loss(kTokens);
  const View<const std::int32_t> targets_T(targets.data(), kTokens);
  const View<float> loss_T(loss.data(), kTokens);
  b.check(
      [&] {
        Context ctx = b.context();
        head.loss(ctx, x.compute, targets_T, loss_T, 0, {});
        double sum = 0;
        for (float l : loss) sum += l;
        return sum;
      },
      [&] {
        Context ctx = b.context();
        head.loss(ctx, x.compute, targets_T, loss_T, 1, x.grad);
      });
  EXPECT_EQ(loss[3], 0);
}

}  // namespace
}  // namespace nibble
