// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e8m0.h"
#include "quant/fp8_tensor.h"

/// FP8 with a scale each 1 x 128 values (activations, gradients) or 128 x 128 (weights): Fp8Scale of the
/// block's own amax, no tensor scale. With powers of two (the default of [TE]: encode rounded down) the scale
/// is an E8M0 byte and element times scale is exact in BF16; with FP32 scales the operand is the element and
/// a product must scale each 128 of its sum. What lies beyond the matrix counts as 0. Sources: [TE],
/// [DEEPSEEK].
namespace nibble {

inline constexpr int kFp8Block = 128;

/// The decode scale of a power-of-two block as its exponent byte: 2^-127 to 2^126, all of E8M0's kind.
NIBBLE_HD constexpr E8M0 power_of_two_scale(const Fp8Scale& scale) {
  return {static_cast<std::uint8_t>(float_bits(scale.decode) >> 23)};
}

}  // namespace nibble
