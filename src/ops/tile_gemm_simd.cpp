// SPDX-License-Identifier: Apache-2.0
#include "ops/tile_gemm.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

// The block of c that stays in registers: 16 vectors of the 32 that AVX-512 has, 8 of the 16 of AVX2.
#if defined(__AVX512F__)
constexpr int kRows = 8;
#else
constexpr int kRows = 2;
#endif
constexpr int kWide = kTileCols;  // narrower loops are unrolled before they are vectorised, and stay scalar

inline void block(const TileGemm& g, std::int64_t i0, std::int64_t j0, std::int64_t k0, std::int64_t k1) {
  float sum[kRows][kWide];
  float* c = g.c + i0 * g.c_row + j0;
  const std::int64_t c_row = g.c_row;
  if (g.beta == 0) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kWide; ++j) sum[i][j] = 0;
  } else {
    const float beta = g.beta;
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kWide; ++j) sum[i][j] = beta * c[i * c_row + j];
  }
  const std::int64_t a_row = g.a_row, a_col = g.a_col, b_row = g.b_row;
  const float* __restrict a = g.a + i0 * a_row + k0 * a_col;
  const float* __restrict b = g.b + k0 * b_row + j0;
  for (std::int64_t k = k0; k < k1; ++k, a += a_col, b += b_row)
    for (int i = 0; i < kRows; ++i) {
      const float factor = a[i * a_row];
      for (int j = 0; j < kWide; ++j) sum[i][j] = __builtin_fmaf(factor, b[j], sum[i][j]);
    }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kWide; ++j) c[i * c_row + j] = sum[i][j];
}

}  // namespace

void tile_gemm(const TileGemm& g) {
  for (std::int64_t i = 0; i < g.rows; i += kRows) {
    // The ends are those of the whole step of kTileRows, whatever the block: the same sums at every level.
    const std::int64_t step = i / kTileRows * kTileRows, next = step + kTileRows;
    const std::int64_t k0 = g.shape == TileShape::UpperA ? (step < g.depth ? step : g.depth) : 0;
    const std::int64_t k1 = g.shape == TileShape::LowerA && next < g.depth ? next : g.depth;
    const std::int64_t cols = g.shape == TileShape::LowerC && next < g.cols
                                  ? (next + kTileCols - 1) / kTileCols * kTileCols
                                  : g.cols;
    for (std::int64_t j = 0; j < cols; j += kWide) block(g, i, j, k0, k1);
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
