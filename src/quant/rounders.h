// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e2m1.h"

/// How a scaled value becomes an E2M1 code. A rounder is called with the value and its place in the block.
namespace nibble {

struct NearestEven {
  NIBBLE_HD constexpr E2M1 operator()(float x, int) const { return E2M1::nearest(x); }
};

struct NearestAway {
  NIBBLE_HD constexpr E2M1 operator()(float x, int) const { return E2M1::nearest_away(x); }
};

/// Eight random bits a value (numeric/random_key.h, random_byte). The caller fills them, because only it
/// knows which element of the tensor each place of the block is: in a transposed copy they lie a row apart.
template <int kBlock>
struct Stochastic {
  std::uint8_t random[kBlock];
  NIBBLE_HD constexpr E2M1 operator()(float x, int j) const { return E2M1::stochastic(x, random[j]); }
};

/// `bits` random bits a value, the upper ones of random_bits24: more bits refine the same draw.
template <int kBlock>
struct StochasticBits {
  std::uint32_t random[kBlock];
  int bits;
  NIBBLE_HD constexpr E2M1 operator()(float x, int j) const {
    return E2M1::stochastic_bits(x, random[j] >> (24 - bits), bits);
  }
};

/// Twenty-four random bits a value (random_bits24).
template <int kBlock>
struct StochasticExact {
  std::uint32_t random[kBlock];
  NIBBLE_HD constexpr E2M1 operator()(float x, int j) const { return E2M1::stochastic_exact(x, random[j]); }
};

/// The code of value j in packed bytes: value 2i in the low half of byte i, value 2i + 1 in the high half.
NIBBLE_HD constexpr E2M1 unpack_code(const std::uint8_t* codes, int j) {
  return {static_cast<std::uint8_t>((codes[j / 2] >> (4 * (j % 2))) & 0xF)};
}

NIBBLE_HD constexpr std::uint8_t pack_codes(E2M1 even, E2M1 odd) {
  return static_cast<std::uint8_t>(even.code | odd.code << 4);
}

}  // namespace nibble
