// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "numeric/bf16.h"

namespace nibble::cpu {

/// A rectangle of FP32 scratch with zeros beyond what was read: [rows, cols], of which the first `used_rows`
/// and `used_cols` carry numbers.
struct Tile {
  float* data;
  std::int64_t rows, cols;
  std::int64_t used_rows, used_cols;
};

#define NIBBLE_TILE_IO_KERNELS(level)                                                                 \
  namespace level {                                                                                   \
  void read_tile(const float* from, std::int64_t stride, const Tile& to);                             \
  void read_tile(const bf16* from, std::int64_t stride, const Tile& to);                              \
  void write_tile(const Tile& from, float* to, std::int64_t stride);                                  \
  void write_tile(const Tile& from, bf16* to, std::int64_t stride);                                   \
  void transpose_tile(const float* from, std::int64_t from_row, std::int64_t rows, std::int64_t cols, \
                      float* to, std::int64_t to_row);                                                \
  }
NIBBLE_FOR_EACH_SIMD(NIBBLE_TILE_IO_KERNELS)
#undef NIBBLE_TILE_IO_KERNELS

}  // namespace nibble::cpu
