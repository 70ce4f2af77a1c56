// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"

/// Where the block scales of an operand lie for the tensor cores: 512-byte tiles of 128 rows x 4 scales,
/// tiles row-major; inside a tile 32 lanes of 16 bytes, lane = row % 32, holding 4 row groups x 4 scales. The
/// same for NVFP4 and MXFP8. Padding must hold zeros: a NaN byte there reaches the result. [CUBLAS] [TE]
namespace nibble {

NIBBLE_HD constexpr std::int64_t swizzle_padded_rows(std::int64_t rows) { return (rows + 127) / 128 * 128; }
NIBBLE_HD constexpr std::int64_t swizzle_padded_columns(std::int64_t columns) {
  return (columns + 3) / 4 * 4;
}

/// Byte offset of scale (row, column) of an operand with `columns` block scales a row.
NIBBLE_HD constexpr std::int64_t swizzle_offset(std::int64_t row, std::int64_t column, std::int64_t columns) {
  const std::int64_t tile = row / 128 * (swizzle_padded_columns(columns) / 4) + column / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

}  // namespace nibble
