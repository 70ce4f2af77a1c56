// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/bf16.h"
#include "numeric/random_key.h"
#include "quant/format.h"

/// The random Hadamard transform of n neighbours along the reduction axis, n a power of two from 2 to 128:
///   y[c] = n^-1/2 sum over r of s[r] x[r] (-1)^popcount(r & c),   s[r] = -1 where sign bit r is set
/// It is orthogonal, so rotating both operands of a GEMM leaves the product as it was, and spreads an outlier
/// over the values that share its scale. Source: [NVFP4], [TE]; sizes and redrawn signs [QUARTET2].
namespace nibble {

inline constexpr int kLargestRotation = 128;

/// One sign a neighbour.
struct SignBits {
  std::uint32_t word[4] = {};
  NIBBLE_HD constexpr bool negative(int i) const { return ((word[i / 32] >> (i % 32)) & 1u) != 0; }
};

/// The signs of a rotation. `mask` is QuantSpec::sign_mask; `key` is resolved() and matters where signs are
/// redrawn.
NIBBLE_HD constexpr SignBits rotation_signs(int size, RotationSigns signs, std::uint16_t mask,
                                            const RandomKey& key) {
  constexpr std::uint32_t kPublished = 0xD7E8;  // of size 16 [TE]
  const bool published = size == 16 && signs == RotationSigns::Fixed;
  SignBits out;
  if (published) {
    out.word[0] = kPublished;
  } else if (signs != RotationSigns::None) {
    // Fixed: drawn once and for all, under the digits of pi as the seed.
    const PhiloxBlock drawn =
        signs == RotationSigns::Redrawn ? random_signs(key) : philox({0x243F6A8885A308D3u}, {});
    for (int i = 0; i < 4; ++i) out.word[i] = drawn.word[i];
  }
  const std::uint32_t flips = mask ^ kPublished;
  for (int i = 0; i < 4; ++i) out.word[i] ^= flips | flips << 16;
  return out;
}

/// n^-1/2: a power of two, or one times the FP32 number nearest to the root of 1/2.
NIBBLE_HD constexpr float hadamard_factor(int size) {
  float factor = 1;
  for (; size >= 4; size /= 4) factor *= 0.5f;
  return size == 2 ? factor * 0.70710678118654752f : factor;
}

/// In place, in FP32, for any size: signs first, butterflies of distance 1, 2, 4 ..., then the factor. The
/// order of the additions is part of the definition. V as below.
template <class V>
NIBBLE_HD constexpr void hadamard(V* x, int size, const SignBits& signs) {
  for (int i = 0; i < size; ++i) {
    if (signs.negative(i)) x[i] = -x[i];
  }
  for (int distance = 1; distance < size; distance *= 2) {
    for (int i = 0; i < size; ++i) {
      if (i & distance) continue;
      const V low = x[i], high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
  const float factor = hadamard_factor(size);
  for (int i = 0; i < size; ++i) x[i] = x[i] * factor;
}

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
