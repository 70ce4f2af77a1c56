// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace nibble {

struct PhiloxKey {
  std::uint64_t seed = 0;
};

/// 128 random bits.
struct PhiloxBlock {
  std::uint32_t word[4] = {};

  /// Byte j of 16, little-endian within each word.
  NIBBLE_HD constexpr std::uint8_t byte(int j) const {
    return static_cast<std::uint8_t>(word[j / 4] >> (8 * (j % 4)));
  }
  NIBBLE_HD friend constexpr bool operator==(const PhiloxBlock& a, const PhiloxBlock& b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1] && a.word[2] == b.word[2] &&
           a.word[3] == b.word[3];
  }
};

/// Philox4x32-10: a bijection of the 128-bit counter chosen by the 64-bit key. It has no state, so any
/// element of a stream can be drawn by any thread in any order. Source: [PHILOX].
NIBBLE_HD constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  std::uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace nibble
