// SPDX-License-Identifier: Apache-2.0
// Linears whose products read the stored codes, as on tensor cores that have the format, against the same
// linears with exact BF16 operands. On ref and cpu those products decode what the quantiser stored: the
// copies, their orientation, their scales' order and their factors are those that a card is given.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layers/amax_state.h"
#include "layers/linear.h"
#include "ops/finite_difference.h"

namespace nibble {
namespace {

constexpr NativeGemm kAll{.fp8 = true, .fp4 = true, .mxfp8 = true};

struct Result {
  std::vector<float> y, dx, dw;
};

struct Watcher final : QuantObserver {
  OperandSums* operand(const LinearInfo&, Gemm g, Operand o, const QuantSpec&) override {
    return &operands[{g, o}];
  }
  DifferenceSums* product(const LinearInfo&, Gemm g) override { return &products[g]; }
  std::map<std::pair<Gemm, Operand>, OperandSums> operands;
  std::map<Gemm, DifferenceSums> products;
};

/// One linear of a model, two micro-batches a step; each step has other weights.
struct Bench {
  Bench(BackendKind backend, std::int64_t tokens, std::int64_t rows, std::int64_t cols)
      : stream(backend, host, 2), arena(host), t(tokens), n(rows), k(cols) {
    x = normal_bf16(1, t * k, 1);
    w = normal_bf16(2, n * k, 0.1);
    dy = normal_bf16(3, t * n, 1e-2);
  }

  Result run(Recipe recipe, const NativeGemm& native, int steps = 1, QuantObserver* observer = nullptr,
             std::int64_t y_stride = 0) {
    recipe.first_blocks = recipe.last_blocks = 0;
    const LinearInfo info{
        .name = "blocks.0.mlp.up", .kind = "mlp.up", .block = 0, .blocks = 1, .n = n, .k = k};
    check_recipe(recipe, std::span(&info, 1), t);
    std::vector<bf16> weights = w;
    Buffer grad(host, static_cast<std::size_t>(n * k) * sizeof(float));
    const View<float> dw(grad.as<float>(), n, k);
    std::vector<float> bias = normal_vector(4, n, 0.3), dbias(bias.size());
    Param added{};
    if (biased) added = {.master = View<float>(bias.data(), n), .grad = View<float>(dbias.data(), n)};
    Linear linear(info, host, {.master = {}, .compute = View<const bf16>(weights.data(), n, k), .grad = dw},
                  added);
    const AmaxState amaxes(host, 1, history_of(recipe), recipe.amax_margin);
    const std::int64_t stride = y_stride > 0 ? y_stride : n;
    Buffer y(host, static_cast<std::size_t>(t * stride) * sizeof(bf16)),
        dx(host, static_cast<std::size_t>(t * k) * sizeof(bf16));
    for (int step = 0; step < steps; ++step) {
      for (bf16& e : weights) e = bf16::nearest(e.value() * (step == 0 ? 1.0f : -0.75f));
      for (int micro = 0; micro < 2; ++micro) {
        Context ctx{.stream = stream,
                    .arena = arena,
                    .recipe = recipe,
                    .seq_len = t,
                    .step = step,
                    .first_token = micro * t,
                    .sr_seed = 7,
                    .weights_version = static_cast<std::uint64_t>(step),
                    .first_wgrad = micro == 0};
        ctx.native = native;
        ctx.amaxes = &amaxes;
        ctx.observer = observer;
        const View<const bf16> x_TK(x.data(), t, k), dy_TN(dy.data(), t, n);
        Layout layout = Layout::contiguous(t, n);
        layout.stride[0] = stride;
        linear.forward(ctx, x_TK, View<bf16>(y.as<bf16>(), layout));
        linear.backward(ctx, x_TK, dy_TN, View<bf16>(dx.as<bf16>(), t, k));
      }
      amaxes.push(stream, step, nullptr);
    }
    Result r;
    for (std::int64_t i = 0; i < t * n; ++i) r.y.push_back(y.as<bf16>()[i / n * stride + i % n].value());
    for (std::int64_t i = 0; i < t * k; ++i) r.dx.push_back(dx.as<bf16>()[i].value());
    r.dw.assign(grad.as<float>(), grad.as<float>() + n * k);
    return r;
  }

  HostDevice host;
  Stream stream;
  Arena arena;
  std::int64_t t, n, k;
  std::vector<bf16> x, w, dy;
  bool biased = false;
};

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.y, b.y) << what;
  EXPECT_EQ(a.dx, b.dx) << what;
  EXPECT_EQ(a.dw, b.dw) << what;
}

Recipe nvfp4(const RecipeEdits& edits = {}) { return edited(find_recipe("nvfp4"), edits); }

class LinearNativeOn : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, LinearNativeOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(LinearNativeOn, StoredCodesGiveTheBytesOfTheExactOperands) {
  const Recipe kRecipes[] = {
      nvfp4(),
      nvfp4({.weights_2d = false}),
      nvfp4({.rht = false, .sr = false}),
      nvfp4({.rht_size = 128, .rht_signs = RotationSigns::Redrawn, .rht_gemms = kAllGemms}),
      nvfp4({.profile = Profile::Te213}),
      nvfp4({.sr_headroom = true}),
      nvfp4({.tensor_scaling = TensorScaling::Previous}),
      find_recipe("nvfp4-4over6"),
      find_recipe("quartet2"),
      find_recipe("averis"),
      find_recipe("mxfp8"),
      edited(find_recipe("mxfp8"),
             {.overrides = {{.gemm = Gemm::Dgrad, .operand = Operand::A, .format = Format::Mxfp8E5M2}}}),
      find_recipe("fp8-current")};
  for (const Recipe& recipe : kRecipes) {
    Bench b(GetParam(), 32, 160, 64);
    expect_same(b.run(recipe, kAll, 2), b.run(recipe, {}, 2), recipe.name);
  }
}

/// On a card the sums are FP32 and the bias is added to them: not to what was rounded already.
TEST_P(LinearNativeOn, ABiasIsAddedToTheProductOfCodes) {
  for (const char* name : {"nvfp4", "mxfp8", "fp8-current"}) {
    Bench b(GetParam(), 32, 160, 64);
    const Result without = b.run(find_recipe(name), kAll);
    b.biased = true;
    const Result with = b.run(find_recipe(name), kAll);
    expect_same(with, b.run(find_recipe(name), {}), name);
    EXPECT_NE(with.y, without.y) << name;
    EXPECT_EQ(with.dx, without.dx) << name;
  }
}

/// A row of y that does not begin at a multiple of 16 bytes is what the product of codes refuses and matmul
/// takes, so who refuses tells which of them was called.
TEST_P(LinearNativeOn, TheProductIsThatOfTheFormat) {
  const struct {
    Recipe recipe;
    const char* op;
  } kCases[] = {{nvfp4(), "matmul_fp4"},
                {find_recipe("mxfp8"), "matmul_mxfp8"},
                {find_recipe("fp8-current"), "matmul_fp8"}};
  for (const auto& c : kCases) {
    Bench b(GetParam(), 32, 64, 96);
    EXPECT_NO_THROW(b.run(c.recipe, {}, 1, nullptr, 65));
    try {
      b.run(c.recipe, kAll, 1, nullptr, 65);
      ADD_FAILURE() << c.op << " was not called";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(std::string(c.op) + ":"), std::string::npos) << e.what();
    }
  }
}

/// 48 of a row are no multiple of 32: those GEMMs fall back, each for itself. 24 is none of FP8's 16.
TEST_P(LinearNativeOn, OddShapesFallBackGemmByGemm) {
  for (const auto& [t, n, k] :
       {std::array<std::int64_t, 3>{64, 48, 96}, {64, 96, 48}, {48, 64, 96}, {48, 48, 48}}) {
    Bench b(GetParam(), t, n, k);
    for (const Recipe& recipe : {nvfp4(), find_recipe("nvfp4-4over6")})
      expect_same(b.run(recipe, kAll, 2), b.run(recipe, {}, 2), recipe.name);
  }
  Bench b(GetParam(), 40, 24, 72);
  expect_same(b.run(find_recipe("fp8-current"), kAll), b.run(find_recipe("fp8-current"), {}), "fp8");
}

/// One linear meets several precisions: its copies of the weight are never read as what they are not.
TEST_P(LinearNativeOn, CopiesOfTheWeightAreOfTheStepsProduct) {
  Recipe changing =
      nvfp4({.overrides = {{.gemm = Gemm::Fprop, .from_step = 1, .until_step = 2, .format = Format::Bf16}}});
  changing.switches.push_back({.from_step = 3, .to = find_recipe("mxfp8")});
  changing.switches.back().to.first_blocks = changing.switches.back().to.last_blocks = 0;
  Bench b(GetParam(), 64, 96, 64);
  for (const NativeGemm& native : {kAll, NativeGemm{.fp4 = true}, NativeGemm{.mxfp8 = true}})
    expect_same(b.run(changing, native, 5), b.run(changing, {}, 5), "switched");
}

TEST_P(LinearNativeOn, TelemetrySaysTheSame) {
  for (const Recipe& recipe : {nvfp4(), find_recipe("mxfp8")}) {
    Bench b(GetParam(), 32, 160, 64);
    Watcher native, emulated;
    const Result watched = b.run(recipe, kAll, 1, &native);
    b.run(recipe, {}, 1, &emulated);
    expect_same(watched, b.run(recipe, kAll), "an observer changes no bit");
    ASSERT_EQ(native.operands.size(), 6u);
    ASSERT_EQ(native.products.size(), 3u);
    for (const auto& [where, sums] : emulated.operands)
      EXPECT_EQ(native.operands[where].quantised.sqnr_db(), sums.quantised.sqnr_db());
    for (const auto& [gemm, sums] : emulated.products)
      EXPECT_EQ(native.products[gemm].relative_error(), sums.relative_error());
  }
}

TEST(LinearNative, APlantedScaleIsReadInEveryFormat) {
  for (const char* name : {"nvfp4", "mxfp8", "fp8-current"}) {
    Recipe planted = find_recipe(name);
    planted.scale_binade_layers = "*.up";
    Bench b(BackendKind::Cpu, 32, 64, 96);
    const Result sound = b.run(find_recipe(name), kAll), twice = b.run(planted, kAll);
    for (std::size_t i = 0; i < sound.dw.size(); ++i) ASSERT_EQ(twice.dw[i], 2 * sound.dw[i]) << name;
  }
}

TEST(LinearNative, ANaNIsFoundBeforeTheCast) {
  Bench b(BackendKind::Cpu, 32, 64, 96);
  b.dy[5].bits = 0x7FC0;
  EXPECT_THROW(b.run(nvfp4(), kAll), Error);
}

}  // namespace
}  // namespace nibble
