// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/simd.h"

namespace nibble::cpu {

/// Which part of a product of tiles is wanted. The diagonal is respected in steps of kTileRows, so what lies
/// just beyond it must be zero (LowerA, UpperA) or is computed too (LowerC).
enum class TileShape {
  Full,
  LowerA,  ///< a[i, k] = 0 for k > i: row i reads k <= i
  UpperA,  ///< a[i, k] = 0 for k < i: row i reads k >= i
  LowerC,  ///< only c[i, j] with j <= i is wanted
};

inline constexpr std::int64_t kTileRows = 8;
inline constexpr std::int64_t kTileCols = 32;

NIBBLE_HD constexpr std::int64_t padded_rows(std::int64_t n) {
  return (n + kTileRows - 1) / kTileRows * kTileRows;
}
NIBBLE_HD constexpr std::int64_t padded_cols(std::int64_t n) {
  return (n + kTileCols - 1) / kTileCols * kTileCols;
}

/// c[i, j] = beta c[i, j] + sum over k < depth of a[i, k] b[k, j], for tiles that fit the first caches: FP32,
/// summed in the order of k by fused multiply-adds, so every SIMD level gives the same bits.
/// `rows` is a multiple of kTileRows and `cols` of kTileCols: callers pad their scratch. With beta = 0 the
/// old c is not read.
struct TileGemm {
  std::int64_t rows, cols, depth;
  const float* a;
  std::int64_t a_row, a_col;  ///< strides of a: a transposed operand is only other strides
  const float* b;
  std::int64_t b_row;  ///< columns of b and c are contiguous
  float* c;
  std::int64_t c_row;
  float beta = 0;
  TileShape shape = TileShape::Full;
};

#define NIBBLE_TILE_GEMM_KERNELS(level) \
  namespace level {                     \
  void tile_gemm(const TileGemm&);      \
  }
NIBBLE_FOR_EACH_SIMD(NIBBLE_TILE_GEMM_KERNELS)
#undef NIBBLE_TILE_GEMM_KERNELS

}  // namespace nibble::cpu
