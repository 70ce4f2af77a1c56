// SPDX-License-Identifier: Apache-2.0
// A whole linear layer, forward and backward, against Transformer Engine's reference
// (tests/golden/README.md).
#include "layers/linear.h"

#include <gtest/gtest.h>

#include <bit>

#include "../../tests/support/golden_file.h"

namespace nibble {
namespace {

struct Case {
  const char* name;
  std::int64_t t, k, n;
  BackendKind backend;
};

class GoldenLinear : public ::testing::TestWithParam<Case> {
 protected:
  GoldenLinear() : file_(NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors") {}

  std::vector<bf16> load(const std::string& key) const {
    const auto bits = file_.values<std::uint16_t>(base() + key);
    std::vector<bf16> out;
    for (std::uint16_t b : bits) out.push_back({b});
    return out;
  }
  std::string base() const { return std::string("lin/") + GetParam().name + "/"; }

  nibble::testing::GoldenFile file_;
};

Recipe recipe_of(const std::string& name) {
  RecipeEdits edits{.sr = false, .bf16_first = 0, .bf16_last = 0};
  if (name.starts_with("vanilla")) edits.weights_2d = edits.rht = false;
  return edited(find_recipe("nvfp4"), edits);
}

template <class T>
std::int64_t count_differing(const std::vector<T>& ours, const std::vector<T>& golden) {
  std::int64_t n = 0;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  for (std::size_t i = 0; i < golden.size(); ++i)
    n += std::bit_cast<Bits>(ours[i]) != std::bit_cast<Bits>(golden[i]);
  return n;
}

TEST_P(GoldenLinear, OutputsAndAccumulatedWeightGradientHaveTheSameBytes) {
  const Case c = GetParam();
  HostDevice host;
  Stream stream(c.backend, host, 2);
  Arena arena(host);
  const std::vector<bf16> x = load("x"), w = load("w"), dy = load("dy");
  const bool accumulates = file_.has(base() + "main_grad.in");
  std::vector<float> grad =
      accumulates ? file_.floats(base() + "main_grad.in") : std::vector<float>(w.size(), 0.0f);
  Param weight;
  weight.compute = View<const bf16>(w.data(), c.n, c.k);
  weight.grad = View<float>(grad.data(), c.n, c.k);
  const Recipe recipe = recipe_of(c.name);
  Context ctx{.stream = stream, .arena = arena, .recipe = recipe, .seq_len = c.t};
  Linear linear({.name = "linear", .kind = "out", .block = 0, .blocks = 1, .n = c.n, .k = c.k}, host, weight);

  std::vector<float> y(c.t * c.n), dx(c.t * c.k);
  linear.forward(ctx, View<const bf16>(x.data(), c.t, c.k), View<float>(y.data(), c.t, c.n));
  linear.backward(ctx, View<const bf16>(x.data(), c.t, c.k), View<const bf16>(dy.data(), c.t, c.n),
                  View<float>(dx.data(), c.t, c.k));
  EXPECT_EQ(count_differing(y, file_.floats(base() + "y.f32")), 0);
  EXPECT_EQ(count_differing(dx, file_.floats(base() + "dx.f32")), 0);
  EXPECT_EQ(count_differing(grad, file_.floats(base() + (accumulates ? "main_grad.out" : "dw.f32"))), 0);

  if (!file_.has(base() + "y.bf16")) return;
  std::vector<bf16> y16(y.size()), dx16(dx.size());
  linear.forward(ctx, View<const bf16>(x.data(), c.t, c.k), View<bf16>(y16.data(), c.t, c.n));
  linear.backward(ctx, View<const bf16>(x.data(), c.t, c.k), View<const bf16>(dy.data(), c.t, c.n),
                  View<bf16>(dx16.data(), c.t, c.k));
  EXPECT_EQ(count_differing(y16, load("y.bf16")), 0);
  EXPECT_EQ(count_differing(dx16, load("dx.bf16")), 0);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (BackendKind b : {BackendKind::Ref, BackendKind::Cpu}) {
    all.push_back({"default_64x128x96", 64, 128, 96, b});
    all.push_back({"vanilla_64x128x96", 64, 128, 96, b});
    all.push_back({"default_128x192x160", 128, 192, 160, b});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(TransformerEngine, GoldenLinear, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.name) + "_" + std::string(name_of(info.param.backend));
});

}  // namespace
}  // namespace nibble
