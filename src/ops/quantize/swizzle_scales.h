// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/op.h"

namespace nibble {

/// The block scales of an operand as tensor cores with native block scaling read them: tiles of 128 rows x 4
/// scales, padded with zeros (quant/swizzle.h). For NVFP4 and MX formats; bytes are moved, never changed.
///
///   scales   [rows, block scales a row], as Quantize wrote them
///   out      [swizzled_size(rows, block scales a row)], all of it is written; 16-byte aligned
///
/// Throws Error{Runtime} for shapes that do not fit.
struct SwizzleScales {
  View<const std::uint8_t> scales_RB;
  View<std::uint8_t> out;
};

/// Bytes of `out`: both sizes rounded up to whole tiles.
std::int64_t swizzled_size(std::int64_t rows, std::int64_t scales_a_row);

NIBBLE_OP(SwizzleScales, swizzle_scales)

}  // namespace nibble
