// SPDX-License-Identifier: Apache-2.0
// A linear that is handed the amaxes of x, dy and its weight computes the bytes that it computes without, on
// every backend, and takes them only where they are what its quantisers would find.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "layers/amax_state.h"
#include "layers/linear.h"
#include "ops/conformance.h"
#include "ops/gemm/native.h"
#include "quant/amax.h"

namespace nibble {
namespace {

constexpr std::int64_t kT = 32, kN = 64, kK = 96;

/// What is handed: this many times the amax; 0: nothing.
struct Handed {
  float x = 0, dy = 0, w = 0;
};

struct Result {
  std::vector<float> y, dx, dw;
  std::int64_t fault = -1;  ///< where a record was kept
};

/// A linear in the middle of a model. All memory that it reads and writes is the test's too.
class Bench {
 public:
  Bench(BackendKind kind, Device& device) : device_(device), stream_(kind, device, 2), arena_(device) {
    fill(x_, kT * kK, 1, 1);
    fill(w_, kN * kK, 2, 0.1f);
    fill(dy_, kT * kN, 3, 1e-2f);
    for (auto* out : {&y_, &dx_}) *out = HostBuffer(device, kT * std::max(kN, kK) * sizeof(bf16));
    dw_ = HostBuffer(device, kN * kK * sizeof(float));
    amaxes_ = HostBuffer(device, 3 * sizeof(float));
    record_ = HostBuffer(device, sizeof(StepRecord));
  }

  View<bf16> x() const { return View<bf16>(x_.as<bf16>(), kT, kK); }
  View<bf16> dy() const { return View<bf16>(dy_.as<bf16>(), kT, kN); }
  View<bf16> w() const { return View<bf16>(w_.as<bf16>(), kN, kK); }
  const LinearInfo& info() const { return info_; }
  NativeGemm native;
  bool records = false;

  /// Two steps, so that an amax of the step before is one that was handed; the gradients are the last one's.
  Result run(const Recipe& recipe, Handed handed) {
    Linear linear(info_, device_,
                  {.compute = View<const bf16>(w()),
                   .grad = View<float>(dw_.as<float>(), kN, kK),
                   .amax = place(2, w(), handed.w)});
    const AmaxState state(device_, 1, history_of(recipe), recipe.amax_margin);
    *record_.as<StepRecord>() = {};
    const WithAmax x_TK = {View<const bf16>(x()), place(0, x(), handed.x)},
                   dy_TN = {View<const bf16>(dy()), place(1, dy(), handed.dy)};
    for (std::int64_t step = 0; step < 2; ++step) {
      Context ctx = context(recipe, step);
      ctx.amaxes = &state;
      linear.forward(ctx, x_TK, View<bf16>(y_.as<bf16>(), kT, kN));
      linear.backward(ctx, x_TK, dy_TN, View<bf16>(dx_.as<bf16>(), kT, kK));
      state.push(stream_, step, nullptr);
      device_.synchronize();
    }
    return {floats(y_, kT * kN), floats(dx_, kT * kK),
            std::vector<float>(dw_.as<float>(), dw_.as<float>() + kN * kK), record_.as<StepRecord>()->fault};
  }

  /// Whether the linear asks for the amax of x, and of dy.
  std::pair<bool, bool> asked(const Recipe& recipe) {
    const Linear linear(info_, device_, {});
    const Context ctx = context(recipe, 0);
    return {linear.room_for_amax_of_x(ctx, arena_) != nullptr,
            linear.room_for_amax_of_dy(ctx, arena_) != nullptr};
  }

 private:
  Context context(const Recipe& recipe, std::int64_t step) {
    return {.stream = stream_,
            .arena = arena_,
            .recipe = recipe,
            .seq_len = kT,
            .step = step,
            .sr_seed = 11,
            .weights_version = static_cast<std::uint64_t>(step),
            .first_wgrad = true,
            .native = native,
            .record = records ? record_.as<StepRecord>() : nullptr};
  }
  void fill(HostBuffer& buffer, std::int64_t count, std::uint64_t seed, float sigma) {
    buffer = HostBuffer(device_, static_cast<std::size_t>(count) * sizeof(bf16));
    for (std::int64_t i = 0; i < count; ++i)
      buffer.as<bf16>()[i] =
          bf16::nearest(sigma * static_cast<float>(initial_normal(seed, 0, static_cast<std::uint64_t>(i))));
  }
  const float* place(int i, const View<bf16>& of, float times) const {
    if (times == 0) return nullptr;
    float amax = 0;
    for (std::int64_t k = 0; k < of.numel(); ++k) amax = amax_keeping_nan(amax, of.data()[k].value());
    amaxes_.as<float>()[i] = times * amax;
    return amaxes_.as<float>() + i;
  }
  static std::vector<float> floats(const HostBuffer& buffer, std::int64_t count) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(buffer.as<bf16>()[i].value());
    return out;
  }

  Device& device_;
  Stream stream_;
  Arena arena_;
  LinearInfo info_{.name = "blocks.50.mlp.up",
                   .kind = "mlp.up",
                   .block = 50,
                   .blocks = 100,
                   .n = kN,
                   .k = kK,
                   .position = 0};
  HostBuffer x_, w_, dy_, y_, dx_, dw_, amaxes_, record_;
};

template <class F>
void on_every_backend(F&& f) {
  HostDevice host;
  for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu}) {
    SCOPED_TRACE(name_of(kind));
    Bench bench(kind, host);
    f(bench);
    bench.native = {.fp8 = true, .fp4 = true, .mxfp8 = true};
    f(bench);
  }
  Device* const gpu = conformance::gpu();
  if (gpu == nullptr) return;  // the test of label "gpu" that asks for one fails instead
  SCOPED_TRACE("cuda");
  Bench bench(BackendKind::Cuda, *gpu);
  f(bench);
  bench.native = native_gemm(*gpu);
  f(bench);
}

Recipe nvfp4(const RecipeEdits& edits) { return edited(find_recipe("nvfp4"), edits); }

/// Where an amax is asked for, and what another one than the operand's would change.
struct Use {
  Recipe recipe;
  bool asks_x, asks_dy;
  bool x_moves_y, x_moves_dw, dy_moves_dx, dy_moves_dw, w_moves_y, w_moves_dx;
};

std::vector<Use> uses() {
  const auto recipe = [](const char* name) { return find_recipe(name); };
  return {
      {recipe("bf16"), false, false, false, false, false, false, false, false},
      // What is rotated is not the operand as it lies: wgrad. dgrad alone saves no pass over dy.
      {recipe("nvfp4"), true, false, true, false, true, false, true, true},
      {nvfp4({.rht = false}), true, true, true, true, true, true, true, true},
      {recipe("fp8-current"), true, true, true, true, true, true, true, true},
      {recipe("fp8-delayed"), true, true, true, true, true, true, true, true},
      {nvfp4({.rht = false, .tensor_scaling = TensorScaling::Previous}), true, true, true, true, true, true,
       true, true},
      // No scale comes of it, but a NaN would be seen in it.
      {nvfp4({.rht = false, .tensor_scaling = TensorScaling::Unit}), true, true, false, false, false, false,
       false, false},
      {recipe("mxfp8"), true, true, false, false, false, false, false, false},
      {recipe("fp8-deepseek"), true, true, false, false, false, false, false, false},
      // An amax a row, but of square-tiled weights one in all; a NaN that is dropped; the mean over tokens
      // taken out, which weights have not.
      {nvfp4({.rht = false, .tensor_scaling = TensorScaling::Row}), false, false, false, false, false, false,
       true, true},
      {nvfp4({.rht = false, .non_finite = NonFinite::AsTe}), false, false, false, false, false, false, false,
       false},
      {recipe("averis"), false, false, false, false, false, false, true, true},
      // wgrad reads the forward copy, decoded and rotated: x's own amax counts there and nowhere else.
      {recipe("quartet2"), true, false, true, true, false, false, true, true},
  };
}

std::string text(const Recipe& recipe) {
  return fmt::format("{}, tensor scaling {}, rotation {}", recipe.name,
                     static_cast<int>(recipe.fprop.a.tensor_scaling), recipe.wgrad.a.rotation);
}

TEST(HandedAmax, ChangesNoByte) {
  on_every_backend([](Bench& b) {
    std::vector<Recipe> all = recipe_catalog();
    for (const Use& u : uses()) all.push_back(u.recipe);
    for (const Recipe& recipe : all) {
      const Result without = b.run(recipe, {}), with = b.run(recipe, {1, 1, 1});
      EXPECT_EQ(with.y, without.y) << text(recipe);
      EXPECT_EQ(with.dx, without.dx) << text(recipe);
      EXPECT_EQ(with.dw, without.dw) << text(recipe);
    }
  });
}

/// Under three times the amax scales fall elsewhere: a linear that took it where it has no business, or did
/// not take it where a pass is to be saved, gives other bytes than this table.
TEST(HandedAmax, IsTakenWhereItIsTheQuantisersAndNowhereElse) {
  on_every_backend([](Bench& b) {
    for (const Use& u : uses()) {
      const Result right = b.run(u.recipe, {}), x = b.run(u.recipe, {3, 0}), dy = b.run(u.recipe, {0, 3}),
                   w = b.run(u.recipe, {0, 0, 3});
      EXPECT_EQ(x.y != right.y, u.x_moves_y) << text(u.recipe);
      EXPECT_EQ(x.dx, right.dx) << text(u.recipe);
      EXPECT_EQ(x.dw != right.dw, u.x_moves_dw) << text(u.recipe);
      EXPECT_EQ(dy.y, right.y) << text(u.recipe);
      EXPECT_EQ(dy.dx != right.dx, u.dy_moves_dx) << text(u.recipe);
      EXPECT_EQ(dy.dw != right.dw, u.dy_moves_dw) << text(u.recipe);
      EXPECT_EQ(w.y != right.y, u.w_moves_y) << text(u.recipe);
      EXPECT_EQ(w.dx != right.dx, u.w_moves_dx) << text(u.recipe);
      EXPECT_EQ(w.dw, right.dw) << text(u.recipe);
      EXPECT_EQ(b.asked(u.recipe), std::pair(u.asks_x, u.asks_dy)) << text(u.recipe);
    }
  });
}

/// The sentence of the error, where nobody keeps a record.
std::string complaint(Bench& b, const Recipe& recipe, Handed handed) {
  try {
    b.run(recipe, handed);
    return "none";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(HandedAmax, ThatIsNotFiniteIsTheFaultOfTheSameOperand) {
  const std::vector<Recipe> recipes = {find_recipe("nvfp4"), nvfp4({.rht = false}), find_recipe("mxfp8"),
                                       find_recipe("fp8-current"), find_recipe("fp8-delayed")};
  on_every_backend([&](Bench& b) {
    for (const float special :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()})
      for (const bool in_x : {true, false}) {
        bf16& victim = in_x ? b.x()(kT - 1, 5) : b.dy()(kT - 1, 5);
        const bf16 before = victim;
        victim = bf16::nearest(special);
        for (const Recipe& recipe : recipes) {
          b.records = false;
          const std::string without = complaint(b, recipe, {});
          EXPECT_EQ(complaint(b, recipe, {1, 1}), without) << text(recipe);
          EXPECT_NE(without.find(in_x ? "fprop operand x" : "dgrad operand dy"), std::string::npos)
              << without;
          b.records = true;
          const std::int64_t fault = in_x ? fault_id(b.info(), Gemm::Fprop, Operand::A)
                                          : fault_id(b.info(), Gemm::Dgrad, Operand::A);
          EXPECT_EQ(b.run(recipe, {}).fault, fault) << text(recipe);
          EXPECT_EQ(b.run(recipe, {1, 1}).fault, fault) << text(recipe);
          b.records = false;
        }
        victim = before;
      }
  });
}

}  // namespace
}  // namespace nibble
