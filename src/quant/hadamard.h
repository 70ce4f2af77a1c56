// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/bf16.h"

/// The random Hadamard transform of 16 neighbours along the reduction axis:
///   y[c] = 1/4 sum over r of s[r] x[r] (-1)^popcount(r & c),   s[r] = -1 where bit r of the mask is set
/// It is orthogonal, so rotating both operands of a GEMM leaves the product as it was, and spreads an outlier
/// over the sixteen values that share its scale. Source: [NVFP4], [TE].
namespace nibble {

/// In place, in FP32: signs first, butterflies of distance 1, 2, 4, 8, then the factor 1/4. The order of the
/// additions is part of the definition, every backend keeps it. V is float, or a vector of floats that
/// transforms many columns at once: it needs +, - and * by a float.
template <class V>
NIBBLE_HD constexpr void hadamard16(V (&x)[16], std::uint16_t sign_mask) {
  for (int i = 0; i < 16; ++i) {
    if ((sign_mask >> i) & 1) x[i] = -x[i];
  }
  for (int distance = 1; distance < 16; distance *= 2) {
    for (int i = 0; i < 16; ++i) {
      if (i & distance) continue;
      const V low = x[i], high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
  for (int i = 0; i < 16; ++i) x[i] = x[i] * 0.25f;
}

/// The transform as quantisers see it: every output rounded once to BF16. Amax is taken over these values.
NIBBLE_HD constexpr void rotate_block(float (&x)[16], std::uint16_t sign_mask) {
  hadamard16(x, sign_mask);
  for (int i = 0; i < 16; ++i) x[i] = bf16::nearest(x[i]).value();
}

}  // namespace nibble
