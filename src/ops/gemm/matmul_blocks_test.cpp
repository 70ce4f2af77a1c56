// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/matmul_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/finite_difference.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

class MatMulBlocksOn : public testing::TestWithParam<BackendKind> {
 protected:
  HostDevice device;
  Stream stream{GetParam(), device, 1};
};
INSTANTIATE_TEST_SUITE_P(Backends, MatMulBlocksOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// A matrix quantised to FP8 under FP32 block scales.
struct Operand {
  std::vector<float> source, scales;
  std::vector<bf16> values;
  std::int64_t rows, cols, blocks;

  Operand(Stream& stream, std::uint64_t seed, std::int64_t r, std::int64_t c, Tile tile)
      : source(normal_vector(seed, r * c)), rows(r), cols(c), blocks((c + 127) / 128) {
    // Channels of very different size: what a scale a tensor would flatten.
    for (std::int64_t i = 0; i < r * c; ++i) source[i] *= i % c / 128 == 1 ? 1e-3f : 10.0f;
    values.resize(source.size());
    scales.resize(static_cast<std::size_t>(r * blocks));
    std::vector<std::uint8_t> codes(source.size());
    float amax = 0, scale = 0;
    quantize(stream,
             {.x_RC = RealView(View<float>(source.data(), r, c)),
              .spec = {.format = Format::Fp8BlockFp32E4M3, .tile = tile},
              .amax = &amax,
              .scale = &scale,
              .values = View<bf16>(values.data(), r, c),
              .codes = View<std::uint8_t>(codes.data(), r, c),
              .scales = View<std::uint8_t>(reinterpret_cast<std::uint8_t*>(scales.data()), r, 4 * blocks)});
    EXPECT_EQ(scale, 1.0f);
  }
  View<const bf16> view() const { return {values.data(), Layout::contiguous(rows, cols)}; }
  View<const float> scale_view() const { return {scales.data(), Layout::contiguous(rows, blocks)}; }
};

TEST_P(MatMulBlocksOn, MultipliesWhatTheQuantiserWrote) {
  constexpr std::int64_t M = 24, N = 40, K = 320;
  const Operand a(stream, 1, M, K, Tile::Row), b(stream, 2, N, K, Tile::Square);
  std::vector<float> c(static_cast<std::size_t>(M * N));
  matmul_blocks(stream, {.a_MK = a.view(),
                         .b_NK = b.view(),
                         .a_scale_MI = a.scale_view(),
                         .b_scale_NI = b.scale_view(),
                         .c_MN = View<float>(c.data(), M, N)});
  double error = 0, norm = 0;
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t n = 0; n < N; ++n) {
      double exact = 0, decoded = 0, size = 0;
      for (std::int64_t k = 0; k < K; ++k) {
        exact += double{a.source[m * K + k]} * b.source[n * K + k];
        const double term = double{a.values[m * K + k].value()} * a.scales[m * a.blocks + k / 128] *
                            b.values[n * K + k].value() * b.scales[n * b.blocks + k / 128];
        decoded += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(c[m * N + n], decoded, (128 + 3) * 0x1p-24 * size);
      error += (c[m * N + n] - exact) * (c[m * N + n] - exact);
      norm += exact * exact;
    }
  EXPECT_LT(std::sqrt(error / norm), 0.05);  // two operands of E4M3: 0.026 each
}

TEST_P(MatMulBlocksOn, AddsBiasAndWhatWasThere) {
  const std::vector<bf16> ones(256, bf16::nearest(1));
  const std::vector<float> scales = {2, 3};
  const float bias = 10;
  float c = 100;
  const View<const bf16> row(ones.data(), std::int64_t{1}, std::int64_t{256});
  const View<const float> scale(scales.data(), std::int64_t{1}, std::int64_t{2});
  matmul_blocks(stream, {.a_MK = row,
                         .b_NK = row,
                         .a_scale_MI = scale,
                         .b_scale_NI = scale,
                         .c_MN = View<float>(&c, std::int64_t{1}, std::int64_t{1}),
                         .beta = 1,
                         .bias_N = View<const float>(&bias, std::int64_t{1})});
  EXPECT_EQ(c, 128 * 4 + 128 * 9 + 10 + 100);
}

TEST(MatMulBlocksCheck, NamesWhatDoesNotFit) {
  const std::vector<bf16> x(256);
  const std::vector<float> scales(4);
  float c = 0;
  const View<const bf16> row(x.data(), std::int64_t{1}, std::int64_t{256});
  MatMulBlocks g{.a_MK = row, .b_NK = row, .c_MN = View<float>(&c, std::int64_t{1}, std::int64_t{1})};
  g.a_scale_MI = g.b_scale_NI = View<const float>(scales.data(), std::int64_t{1}, std::int64_t{2});
  EXPECT_NO_THROW(check(g));
  g.b_scale_NI = View<const float>(scales.data(), std::int64_t{1}, std::int64_t{1});
  EXPECT_THROW(check(g), Error);
}

}  // namespace
}  // namespace nibble
