// SPDX-License-Identifier: Apache-2.0
#include "ops/tile_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/finite_difference.h"

namespace nibble::cpu {
namespace {

/// The sum in the documented order, and nothing else.
float expected(const TileGemm& g, const std::vector<float>& c, std::int64_t i, std::int64_t j,
               std::int64_t k0, std::int64_t k1) {
  float sum = g.beta == 0 ? 0.0f : g.beta * c[i * g.c_row + j];
  for (std::int64_t k = k0; k < k1; ++k)
    sum = std::fma(g.a[i * g.a_row + k * g.a_col], g.b[k * g.b_row + j], sum);
  return sum;
}

class TileGemmTest : public testing::TestWithParam<SimdLevel> {
 protected:
  // On a processor without the level, the best one runs instead.
  void SetUp() override { set_simd_level(GetParam()); }
  void TearDown() override { set_simd_level(before_); }
  SimdLevel before_ = simd_level();
};

INSTANTIATE_TEST_SUITE_P(Levels, TileGemmTest,
                         testing::Values(SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512));

TEST_P(TileGemmTest, IsTheSumInOrderToTheBitForEveryStrideAndBeta) {
  const auto a = normal_vector(1, 40 * 40), b = normal_vector(2, 40 * 64), old = normal_vector(3, 40 * 64);
  for (std::int64_t depth : {0, 1, 5, 40})
    for (bool transposed : {false, true})
      for (float beta : {0.0f, 1.0f, 0.3f}) {
        std::vector<float> c = old;
        const TileGemm g{.rows = 24,
                         .cols = 64,
                         .depth = depth,
                         .a = a.data(),
                         .a_row = transposed ? 1 : 40,
                         .a_col = transposed ? 40 : 1,
                         .b = b.data(),
                         .b_row = 64,
                         .c = c.data(),
                         .c_row = 64,
                         .beta = beta};
        NIBBLE_SIMD_CALL(tile_gemm, g);
        for (std::int64_t i = 0; i < 24; ++i)
          for (std::int64_t j = 0; j < 64; ++j)
            ASSERT_EQ(c[i * 64 + j], expected(g, old, i, j, 0, depth)) << i << " " << j;
        EXPECT_EQ(c[24 * 64], old[24 * 64]);
      }
}

TEST_P(TileGemmTest, TriangularShapesGiveTheFullProductOfATriangularMatrix) {
  const std::int64_t n = 40;
  const auto full = normal_vector(1, n * n), b = normal_vector(2, n * 32);
  for (TileShape shape : {TileShape::LowerA, TileShape::UpperA}) {
    std::vector<float> a = full;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t k = 0; k < n; ++k)
        if (shape == TileShape::LowerA ? k > i : k < i) a[i * n + k] = 0;
    std::vector<float> c(n * 32), want(n * 32);
    TileGemm g{.rows = n,
               .cols = 32,
               .depth = n,
               .a = a.data(),
               .a_row = n,
               .a_col = 1,
               .b = b.data(),
               .b_row = 32,
               .c = want.data(),
               .c_row = 32};
    NIBBLE_SIMD_CALL(tile_gemm, g);
    g.c = c.data();
    g.shape = shape;
    NIBBLE_SIMD_CALL(tile_gemm, g);
    EXPECT_EQ(c, want);
  }
}

TEST_P(TileGemmTest, LowerCWritesAtLeastTheLowerTriangle) {
  const std::int64_t n = 64;
  const auto a = normal_vector(1, n * 8), b = normal_vector(2, 8 * n);
  std::vector<float> c(n * n, NAN);
  const TileGemm g{.rows = n,
                   .cols = n,
                   .depth = 8,
                   .a = a.data(),
                   .a_row = 8,
                   .a_col = 1,
                   .b = b.data(),
                   .b_row = n,
                   .c = c.data(),
                   .c_row = n,
                   .shape = TileShape::LowerC};
  NIBBLE_SIMD_CALL(tile_gemm, g);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j) EXPECT_EQ(c[i * n + j], expected(g, c, i, j, 0, 8));
}

}  // namespace
}  // namespace nibble::cpu
