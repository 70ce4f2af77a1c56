// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/tile_io_kernels.h"
#include "tensor/view.h"

namespace nibble::cpu {

/// Reads rows [first, first + to.used_rows) and columns [0, to.used_cols) of one head of v ([T, heads,
/// width]).
inline void read_head(const ConstRealView& v, std::int64_t first, std::int64_t head, const Tile& to) {
  with_type(v, [&](auto typed) {
    const auto* from = typed.data() + first * typed.stride(0) + head * typed.stride(1);
    NIBBLE_SIMD_CALL(read_tile, from, typed.stride(0), to);
  });
}

/// Writes the used part of a tile to rows from `first` on of one head of v.
inline void write_head(const Tile& from, const RealView& v, std::int64_t first, std::int64_t head) {
  with_type(v, [&](auto typed) {
    auto* to = typed.data() + first * typed.stride(0) + head * typed.stride(1);
    NIBBLE_SIMD_CALL(write_tile, from, to, typed.stride(0));
  });
}

/// The same for v of rank 2, from column `column` on.
inline void read_rows(const ConstRealView& v, std::int64_t first, std::int64_t column, const Tile& to) {
  with_type(v, [&](auto typed) {
    NIBBLE_SIMD_CALL(read_tile, typed.data() + first * typed.stride(0) + column, typed.stride(0), to);
  });
}
inline void write_rows(const Tile& from, const RealView& v, std::int64_t first, std::int64_t column) {
  with_type(v, [&](auto typed) {
    NIBBLE_SIMD_CALL(write_tile, from, typed.data() + first * typed.stride(0) + column, typed.stride(0));
  });
}

/// to[j, i] = from[i, j]; `rows` and `cols` are multiples of 4.
inline void transpose(const float* from, std::int64_t from_row, std::int64_t rows, std::int64_t cols,
                      float* to, std::int64_t to_row) {
  NIBBLE_SIMD_CALL(transpose_tile, from, from_row, rows, cols, to, to_row);
}

}  // namespace nibble::cpu
