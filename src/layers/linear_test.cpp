// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <random>

namespace nibble {
namespace {

constexpr std::int64_t kT = 64, kK = 48, kN = 32;

/// One linear with random BF16 data under a recipe.
struct Fixture {
  explicit Fixture(Recipe r) : recipe(std::move(r)), stream(BackendKind::Cpu, host, 2), arena(host) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 1);
    for (auto* v : {&x, &w, &dy}) {
      v->resize(v == &x ? kT * kK : v == &w ? kN * kK : kT * kN);
      for (bf16& e : *v) e = bf16::nearest(normal(random));
    }
    weight.compute = View<const bf16>(w.data(), kN, kK);
    weight.grad = View<float>(grad.data(), kN, kK);
    linear.emplace(
        LinearInfo{.name = "blocks.1.mlp.up", .kind = "mlp.up", .block = 1, .blocks = 4, .n = kN, .k = kK},
        host, weight);
  }
  Context context(std::int64_t step = 0, std::int64_t first_token = 0) {
    Context ctx{.stream = stream, .arena = arena, .recipe = recipe, .seq_len = kT};
    ctx.step = step;
    ctx.first_token = first_token;
    ctx.sr_seed = 11;
    return ctx;
  }
  void run(Context ctx) {
    linear->forward(ctx, View<const bf16>(x.data(), kT, kK), View<bf16>(y.data(), kT, kN));
    linear->backward(ctx, View<const bf16>(x.data(), kT, kK), View<const bf16>(dy.data(), kT, kN),
                     View<bf16>(dx.data(), kT, kK));
  }

  Recipe recipe;
  HostDevice host;
  Stream stream;
  Arena arena;
  std::vector<bf16> x, w, dy, y = std::vector<bf16>(kT * kN), dx = std::vector<bf16>(kT * kK);
  std::vector<float> grad = std::vector<float>(kN * kK);
  Param weight;
  std::optional<Linear> linear;
};

Recipe nvfp4(RecipeEdits edits = {}) {
  edits.bf16_first = edits.bf16_last = 0;
  return edited(find_recipe("nvfp4"), edits);
}

std::vector<float> floats(const std::vector<bf16>& x) {
  std::vector<float> out;
  for (const bf16& e : x) out.push_back(e.value());
  return out;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double e = 0, n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    e += (a[i] - b[i]) * (a[i] - b[i]);
    n += b[i] * b[i];
  }
  return std::sqrt(e / n);
}

TEST(Linear, ABiasIsAddedWhereCodesAreMultipliedToo) {
  Recipe recipe = find_recipe("fp8-current");
  recipe.first_blocks = recipe.last_blocks = 0;
  Fixture f(recipe);
  std::vector<float> bias(kN), bias_grad(kN);
  for (std::int64_t n = 0; n < kN; ++n) bias[static_cast<std::size_t>(n)] = static_cast<float>(n - 16);
  f.linear.emplace(f.linear->info(), f.host, f.weight,
                   Param{.master = View<float>(bias.data(), kN),
                         .compute = View<const float>(bias.data(), kN),
                         .grad = View<float>(bias_grad.data(), kN)});
  f.run(f.context());
  const std::vector<bf16> emulated = f.y;
  Context native = f.context();
  native.native = {.fp8 = true};
  f.run(native);
  for (std::size_t i = 0; i < emulated.size(); ++i)
    EXPECT_NEAR(f.y[i].value(), emulated[i].value(), 0.01f * std::abs(emulated[i].value()) + 0.01f) << i;
}

TEST(Linear, TheWeightGradientUnderNvfp4IsNearTheBf16OneAndFarWhenTheSignsDiffer) {
  Fixture exact(find_recipe("bf16")), quantized(nvfp4()), broken(nvfp4({.wgrad_sign_mismatch = true}));
  for (Fixture* f : {&exact, &quantized, &broken}) f->run(f->context());
  EXPECT_LT(relative_error(quantized.grad, exact.grad), 0.25);
  EXPECT_GT(relative_error(broken.grad, exact.grad), 1.0);
}

TEST(Linear, StochasticRoundingDrawsNewBitsEachStepAndTheSameForTheSameStep) {
  Fixture a(nvfp4()), b(nvfp4()), c(nvfp4());
  a.run(a.context(5));
  b.run(b.context(5));
  c.run(c.context(6));
  EXPECT_EQ(a.grad, b.grad);
  EXPECT_NE(a.grad, c.grad);
  EXPECT_EQ(std::memcmp(a.y.data(), c.y.data(), a.y.size() * 2), 0) << "the forward pass rounds to nearest";
}

/// Sizes that the rotation does not divide are padded, for both operands alike.
TEST(Linear, RotationsOfAnySizeCancelInTheGradientsOfEveryGemm) {
  Fixture exact(find_recipe("bf16"));
  exact.run(exact.context());
  for (int size : {2, 8, 16, 32, 128}) {
    for (const RotationSigns signs : {RotationSigns::Fixed, RotationSigns::Redrawn, RotationSigns::None}) {
      Fixture f(nvfp4({.rht_size = size, .rht_signs = signs, .rht_gemms = kAllGemms}));
      f.run(f.context(3));
      EXPECT_LT(relative_error(f.grad, exact.grad), 0.25) << size;
      EXPECT_LT(relative_error(floats(f.y), floats(exact.y)), 0.25) << size;
      EXPECT_LT(relative_error(floats(f.dx), floats(exact.dx)), 0.25) << size;
    }
  }
}

TEST(Linear, RedrawnSignsAreThoseOfTheStepAlsoWhereTheWeightStaysTheSame) {
  Fixture f(nvfp4({.rht_signs = RotationSigns::Redrawn, .rht_gemms = kAllGemms})), exact(find_recipe("bf16"));
  exact.run(exact.context());
  for (std::int64_t step = 0; step < 3; ++step) {
    f.run(f.context(step));  // of one weights_version
    EXPECT_LT(relative_error(floats(f.y), floats(exact.y)), 0.25) << step;
  }
}

TEST(Linear, TheMeanOfMsEdensGradientsIsTheGradient) {
  Recipe recipe = find_recipe("quartet2");
  recipe.dgrad.requantize = recipe.wgrad.requantize = false;
  Fixture exact(find_recipe("bf16")), f(recipe);
  exact.run(exact.context());
  constexpr int kSteps = 64;
  std::vector<float> dx(f.dx.size());
  double one = 0;
  for (int step = 0; step < kSteps; ++step) {
    f.run(f.context(step));
    if (step == 0) one = relative_error(f.grad, exact.grad);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += f.dx[i].value() / kSteps;
  }
  for (float& g : f.grad) g /= kSteps;
  EXPECT_LT(one, 0.25);
  EXPECT_LT(relative_error(f.grad, exact.grad), one / 6);
  EXPECT_LT(relative_error(dx, floats(exact.dx)), one / 6);
}

TEST(Linear, ARequantisedOperandIsWhatTheForwardPassMultiplied) {
  Recipe recipe = find_recipe("quartet2");
  for (GemmRecipe* g : {&recipe.dgrad, &recipe.wgrad}) g->a = g->b = {.format = Format::Mxfp8E4M3};
  Recipe plain = recipe;
  plain.dgrad.requantize = plain.wgrad.requantize = false;
  Fixture exact(find_recipe("bf16")), of_tensor(plain), of_forward(recipe);
  for (Fixture* f : {&exact, &of_tensor, &of_forward}) f->run(f->context());
  EXPECT_LT(relative_error(of_tensor.grad, exact.grad), 0.05);
  // The error of four-over-six in x and w, whose square is 7.6e-3 of theirs.
  EXPECT_NEAR(relative_error(of_forward.grad, exact.grad), 0.087, 0.02);
  EXPECT_NEAR(relative_error(floats(of_forward.dx), floats(exact.dx)), 0.087, 0.02);
}

/// A mean over tokens as large as five standard deviations: what is left without it has a fifth of the error.
TEST(Linear, AMeanThatIsTakenOutComesBackExactly) {
  const auto shifted = [](const Recipe& recipe) {
    Fixture f(recipe);
    for (std::size_t i = 0; i < f.x.size(); ++i)
      f.x[i] = bf16::nearest(f.x[i].value() + 5.0f * static_cast<float>(i % kK % 3));
    for (std::size_t i = 0; i < f.dy.size(); ++i)
      f.dy[i] = bf16::nearest(f.dy[i].value() + 4.0f * static_cast<float>(i % kN % 2));
    f.run(f.context());
    return std::array{floats(f.y), floats(f.dx), f.grad};
  };
  Recipe centred = edited(find_recipe("averis"), {.bf16_first = 0, .bf16_last = 0}), plain = centred;
  for (GemmRecipe* g : {&plain.fprop, &plain.dgrad, &plain.wgrad}) g->centre = false;
  const auto exact = shifted(find_recipe("bf16")), with = shifted(centred), without = shifted(plain);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LT(relative_error(with[i], exact[i]), 0.6 * relative_error(without[i], exact[i])) << i;
  }
}

/// Codes that hold every number of the data: the products must be those of BF16 but for its roundings.
TEST(Linear, ProductsAroundTheMeanAreExactWhereTheRestIs) {
  Recipe recipe = edited(find_recipe("averis"), {.bf16_first = 0, .bf16_last = 0});
  for (GemmRecipe* g : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) g->a = g->b = {.format = Format::Nvfp4};
  Fixture exact(find_recipe("bf16")), f(recipe);
  for (Fixture* each : {&exact, &f}) {
    for (std::size_t i = 0; i < each->x.size(); ++i)  // the mean 3 and twice the signs of a balanced pattern
      each->x[i] = bf16::nearest(3.0f + (i / kK % 2 == i % 2 ? 2.0f : -2.0f));
    for (std::size_t i = 0; i < each->dy.size(); ++i)
      each->dy[i] = bf16::nearest(0.5f + (i / kN / 2 % 2 == 0 ? 1.0f : -1.0f));
    for (bf16& w : each->w) w = bf16::nearest(w.value() < 0 ? -1.0f : 1.0f);
    each->run(each->context());
  }
  EXPECT_LT(relative_error(f.grad, exact.grad), 1e-5);
  EXPECT_LT(relative_error(floats(f.y), floats(exact.y)), 4e-3);
  EXPECT_LT(relative_error(floats(f.dx), floats(exact.dx)), 4e-3);
}

TEST(Linear, AddsToTheMainGradientAcrossMicroBatches) {
  Fixture once(nvfp4({.sr = false})), twice(nvfp4({.sr = false}));
  once.run(once.context());
  twice.run(twice.context());
  twice.run(twice.context());
  for (std::size_t i = 0; i < once.grad.size(); ++i) EXPECT_EQ(twice.grad[i], 2 * once.grad[i]);
}

TEST(Linear, QuantisesTheWeightAgainWhenItsVersionChanges) {
  Fixture f(nvfp4());
  Context ctx = f.context();
  f.run(ctx);
  const std::vector<bf16> before = f.y;
  for (bf16& e : f.w) e = bf16::nearest(-e.value());
  f.run(ctx);
  EXPECT_EQ(std::memcmp(f.y.data(), before.data(), before.size() * 2), 0) << "cached for this version";
  ctx.weights_version = 1;
  f.run(ctx);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(f.y[i].value(), -before[i].value());
}

TEST(Linear, ANaNInAnOperandStopsBeforeTheCastWithStepLayerGemmAndOperand) {
  Fixture f(nvfp4());
  f.dy[77].bits = 0x7FC0;
  try {
    f.run(f.context(5));
    FAIL() << "the NaN went through";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::NonFinite);
    EXPECT_EQ(e.exit_code(), 5);
    for (const char* part : {"step 5", "blocks.1.mlp.up", "dgrad", "dy", "NaN"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << part << " in: " << e.what();
  }
  Fixture infinite(nvfp4());
  infinite.x[3] = bf16::nearest(std::numeric_limits<float>::infinity());
  EXPECT_THROW(infinite.run(infinite.context()), Error);
}

TEST(Linear, TheCompatibilitySwitchLetsANaNThroughAsTheKernelsDo) {
  Fixture f(nvfp4({.non_finite = NonFinite::AsTe}));
  f.dy[77].bits = 0x7FC0;
  f.run(f.context());
  for (float g : f.grad) EXPECT_TRUE(std::isfinite(g));
}

class Watcher final : public QuantObserver {
 public:
  OperandSums* operand(const LinearInfo&, Gemm g, Operand o, const QuantSpec&) override {
    return &operands[{g, o}];
  }
  DifferenceSums* product(const LinearInfo&, Gemm g) override { return &products[g]; }
  std::map<std::pair<Gemm, Operand>, OperandSums> operands;
  std::map<Gemm, DifferenceSums> products;
};

TEST(Linear, AnObserverSeesAllSixOperandsAndDoesNotChangeTheResult) {
  Fixture watched(nvfp4()), plain(nvfp4());
  Watcher w;
  Context ctx = watched.context();
  ctx.observer = &w;
  watched.run(ctx);
  plain.run(plain.context());
  EXPECT_EQ(watched.grad, plain.grad);
  ASSERT_EQ(w.operands.size(), 6u);
  for (const auto& [where, sums] : w.operands) {
    const double db = sums.quantised.sqnr_db();
    EXPECT_EQ(sums.unrotated.count > 0, where.first == Gemm::Wgrad) << "only those are rotated";
    const bool stochastic = where.first != Gemm::Fprop && where.second == Operand::A;
    EXPECT_NEAR(db,
                stochastic                   ? 17.2
                : where.first == Gemm::Wgrad ? 20.4
                : where.second == Operand::B ? 19.1
                                             : 20.4,
                0.8);
  }
  ASSERT_EQ(w.products.size(), 3u);
  for (const auto& [gemm, sums] : w.products) {
    EXPECT_GT(sums.relative_error(), 0.02) << name(gemm);
    EXPECT_LT(sums.relative_error(), 0.3) << name(gemm);
  }
}

TEST(Linear, AnObserverCountsAWeightOnceAStepAndTokensInEveryMicroBatch) {
  for (const Recipe& recipe :
       {nvfp4(), find_recipe("quartet2")}) {  // quartet2 quantises the decoded copy again
    Fixture f(recipe);
    std::map<std::pair<Gemm, Operand>, std::int64_t> once;
    Watcher w;
    for (const std::int64_t first : {std::int64_t{0}, kT}) {
      Context ctx = f.context(0, first);
      ctx.observer = &w;
      f.run(ctx);
      if (first == 0)
        for (const auto& [where, sums] : w.operands) once[where] = sums.quantised.count;
    }
    ASSERT_EQ(once.size(), 6u);
    for (const auto& [where, sums] : w.operands) {
      const bool is_weight = where.first != Gemm::Wgrad && where.second == Operand::B;
      EXPECT_EQ(sums.quantised.count, (is_weight ? 1 : 2) * once[where])
          << recipe.name << " " << name(where.first) << " " << operand_name(where.first, where.second);
    }
  }
}

}  // namespace
}  // namespace nibble
