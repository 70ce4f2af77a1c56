// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "../tests/support/golden_file.h"
#include "base/simd.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "ops/gemm/gemm.h"

/// Linear layers in NVFP4 as Transformer Engine's reference computes them: from the golden codes and scales
/// to y, dx, dw and the accumulated main gradient, byte for byte.
namespace nibble {
namespace {

using testing::GoldenFile;

constexpr float kInverseRange = 1.0f / (6.0f * 6.0f * 448.0f * 448.0f);

/// A golden operand with the tensor scale left out: code times block scale, which BF16 holds exactly.
struct Operand {
  std::vector<bf16> values;
  std::int64_t rows, columns;
  float amax;
  ConstRealView view() const { return View<const bf16>(values.data(), rows, columns); }
};

class GoldenMatMul : public ::testing::TestWithParam<std::string> {
 protected:
  Operand operand(const std::string& name, const std::string& suffix) const {
    const std::string key = base() + name;
    const auto codes = file_.values<std::uint8_t>(key + ".data" + suffix);
    const auto scales = file_.values<std::uint8_t>(key + ".scale" + suffix);
    const auto& shape = file_.tensor(key + ".data" + suffix).shape;
    Operand o{{}, shape[0], 2 * shape[1], file_.floats(key + ".amax" + suffix)[0]};
    for (std::size_t i = 0; i < 2 * codes.size(); ++i) {
      const auto code = static_cast<std::uint8_t>((codes[i / 2] >> (4 * (i % 2))) & 15u);
      const float value = E2M1{code}.value() * E4M3{scales[i / 16]}.value();
      o.values.push_back(bf16::nearest(value));
      EXPECT_EQ(o.values.back().value(), value) << "not exact in BF16";
    }
    return o;
  }

  /// Expects the golden `name` (a result [a.rows, b.rows]) from both backends and one or two threads, and on
  /// the path without BF16 hardware. `old` is accumulated into when not empty.
  void expect(const std::string& name, const Operand& a, const Operand& b, float alpha,
              const std::vector<float>& old = {}) {
    const bool half = file_.tensor(base() + name).dtype == "BF16";
    const std::vector<float> golden = file_.floats(base() + name);
    HostDevice device;
    const SimdLevel best = simd_level();
    for (int run = 0; run < 4; ++run) {
      set_simd_level(run == 3 ? SimdLevel::Avx2 : best);
      Stream stream(run == 0 ? BackendKind::Ref : BackendKind::Cpu, device, run == 1 ? 1 : 2);
      std::vector<float> wide = old.empty() ? std::vector<float>(golden.size()) : old;
      std::vector<bf16> narrow(golden.size());
      RealView c = View<float>(wide.data(), a.rows, b.rows);
      if (half) c = View<bf16>(narrow.data(), a.rows, b.rows);
      matmul(stream, {.a_MK = a.view(),
                      .b_NK = b.view(),
                      .c_MN = c,
                      .a_scale = &alpha,
                      .beta = old.empty() ? 0.0f : 1.0f});
      std::int64_t different = 0;
      for (std::size_t i = 0; i < golden.size(); ++i) {
        const float got = half ? narrow[i].value() : wide[i];
        different += std::bit_cast<std::uint32_t>(got) != std::bit_cast<std::uint32_t>(golden[i]) ? 1 : 0;
      }
      EXPECT_EQ(different, 0) << name << " run " << run << ": elements of " << golden.size()
                              << " that differ";
    }
    set_simd_level(best);
  }

  std::string base() const { return "lin/" + GetParam() + "/"; }

  GoldenFile file_{NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors"};
};

TEST_P(GoldenMatMul, OutputsAndGradientsHaveTheSameBytes) {
  // The golden outputs were scaled by the reference's own alpha, (a * b) / range on the device; the alpha of
  // Transformer Engine's kernels, which MatMul computes, may differ from it in the last bit.
  const std::vector<float> alpha = file_.floats(base() + "alpha_ref");
  const struct {
    std::string name;
    Operand a, b;
    float alpha;
  } products[] = {{"y", operand("qx", ""), operand("qw", ""), alpha[0]},
                  {"dx", operand("qdy", ""), operand("qw", "_t"), alpha[1]},
                  {"dw", operand("qdy", "_t"), operand("qx", "_t"), alpha[2]}};
  for (const auto& p : products) {
    expect(p.name + ".f32", p.a, p.b, p.alpha);
    if (file_.has(base() + p.name + ".bf16")) expect(p.name + ".bf16", p.a, p.b, p.alpha);
  }
  if (file_.has(base() + "main_grad.in"))
    expect("main_grad.out", products[2].a, products[2].b, alpha[2], file_.floats(base() + "main_grad.in"));
}

TEST_P(GoldenMatMul, AlphaIsThatOfTheKernels) {
  const std::vector<float> golden = file_.floats(base() + "alpha_te_kernel");
  const struct {
    Operand a, b;
  } products[] = {{operand("qx", ""), operand("qw", "")},
                  {operand("qdy", ""), operand("qw", "_t")},
                  {operand("qdy", "_t"), operand("qx", "_t")}};
  // The sum 1 * 1 comes out as alpha itself.
  const bf16 one = bf16::nearest(1);
  HostDevice device;
  for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu}) {
    Stream stream(kind, device, 1);
    for (std::size_t i = 0; i < 3; ++i) {
      float c = 0;
      matmul(stream, {.a_MK = View<const bf16>(&one, 1, 1),
                      .b_NK = View<const bf16>(&one, 1, 1),
                      .c_MN = View<float>(&c, 1, 1),
                      .a_scale = &products[i].a.amax,
                      .b_scale = &products[i].b.amax,
                      .inverse_range = kInverseRange});
      EXPECT_EQ(std::bit_cast<std::uint32_t>(c), std::bit_cast<std::uint32_t>(golden[i])) << "product " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TransformerEngine, GoldenMatMul,
                         ::testing::Values("vanilla_64x128x96", "default_64x128x96", "default_128x192x160"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nibble
