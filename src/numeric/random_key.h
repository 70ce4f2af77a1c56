// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "base/hd.h"
#include "numeric/philox.h"

namespace nibble {

/// Names the random numbers of one quantised copy of one tensor in one step. Nothing else enters, so
/// micro-batches, threads, ranks and recomputation draw what one big batch on one thread would.
struct RandomKey {
  std::uint64_t seed = 0;  ///< the run's seed of stochastic rounding
  std::uint32_t step = 0;
  std::uint32_t layer = 0;          ///< below 2^24
  std::uint8_t role = 0;            ///< which copy of which tensor: row-wise and transposed copies differ
  std::uint64_t first_element = 0;  ///< index, in the step's global batch, of element 0 of the tensor at hand
  /// Where the step is read from instead of `step`, in the backend's memory: a recorded step that is issued
  /// again then draws the bits of its own number.
  const std::uint32_t* step_at = nullptr;
  bool stuck_at_zero = false;  ///< planted fault: every bit drawn is 0, so that stochastic rounding truncates

  /// The same key with the step in it. Kernels and loops call this once, before they draw.
  NIBBLE_HD constexpr RandomKey resolved() const {
    RandomKey key = *this;
    if (step_at != nullptr) key.step = *step_at;
    key.step_at = nullptr;
    return key;
  }
};

/// Sixteen random bytes: byte j serves global element 16 group + j.
/// Counter = (group low, step, layer << 8 | role, group high); key = seed. A group is below 2^60.
NIBBLE_HD constexpr PhiloxBlock random_bytes(const RandomKey& key, std::uint64_t group) {
  if (key.stuck_at_zero) return {};
  return philox({key.seed}, {{static_cast<std::uint32_t>(group), key.step, (key.layer << 8) | key.role,
                              static_cast<std::uint32_t>(group >> 32)}});
}

/// The 8 random bits of element `index` of the tensor at hand (global element first_element + index).
NIBBLE_HD constexpr std::uint8_t random_byte(const RandomKey& key, std::uint64_t index) {
  const std::uint64_t element = key.first_element + index;
  return random_bytes(key, element / 16).byte(static_cast<int>(element % 16));
}

/// Four random words: the low 24 bits of word j serve global element 4 group + j.
/// Counter = (group low, step, layer << 8 | role, 0x80000000 | group high): the top bit of the last word
/// is never set in random_bytes, so the two streams share no block.
NIBBLE_HD constexpr PhiloxBlock random_words(const RandomKey& key, std::uint64_t group) {
  if (key.stuck_at_zero) return {};
  return philox({key.seed}, {{static_cast<std::uint32_t>(group), key.step, (key.layer << 8) | key.role,
                              0x80000000u | static_cast<std::uint32_t>(group >> 32)}});
}

/// The 24 random bits of element `index` of the tensor at hand, for Rounding::StochasticExact.
NIBBLE_HD constexpr std::uint32_t random_bits24(const RandomKey& key, std::uint64_t index) {
  const std::uint64_t element = key.first_element + index;
  return random_words(key, element / 4).word[element % 4] & 0xFFFFFFu;
}

/// 128 random signs for the rotation of the two operands of one GEMM in one step, whatever their elements.
/// The two have roles 2 g and 2 g + 1 and draw the same, so that the rotation cancels in their product.
/// Counter = (0, step, layer << 8 | role | 1, 0x40000000): of a stream of its own, as above. The planted
/// fault is of rounding and leaves them.
NIBBLE_HD constexpr PhiloxBlock random_signs(const RandomKey& key) {
  return philox({key.seed}, {{0, key.step, (key.layer << 8) | key.role | 1u, 0x40000000u}});
}

/// The 24 random bits of the scale of the block whose first element is `index` of the tensor at hand.
/// Counter = (element low, step, layer << 8 | role, 0xC0000000 | element high).
NIBBLE_HD constexpr std::uint32_t random_scale_bits24(const RandomKey& key, std::uint64_t index) {
  if (key.stuck_at_zero) return 0;
  const std::uint64_t element = key.first_element + index;
  return philox({key.seed}, {{static_cast<std::uint32_t>(element), key.step, (key.layer << 8) | key.role,
                              0xC0000000u | static_cast<std::uint32_t>(element >> 32)}})
             .word[0] &
         0xFFFFFFu;
}

/// 128 random bits for the start value of one element of one parameter, from the run's seed and a 64-bit hash
/// of the tensor's name. The seed is mixed with a constant (the digits of pi) so that a run whose two seeds
/// are equal does not round its gradients with the bits that made its weights.
NIBBLE_HD constexpr PhiloxBlock initial_bits(std::uint64_t seed, std::uint64_t tensor,
                                             std::uint64_t element) {
  return philox({seed ^ 0x243F6A8885A308D3u},
                {{static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32),
                  static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(tensor >> 32)}});
}

/// 52 bits of two words as a number in the open interval (0, 1).
NIBBLE_HD constexpr double open_unit(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

/// A uniform start value in (0, 1).
NIBBLE_HD constexpr double initial_uniform(std::uint64_t seed, std::uint64_t tensor, std::uint64_t element) {
  const PhiloxBlock b = initial_bits(seed, tensor, element);
  return open_unit(b.word[0], b.word[1]);
}

/// A start value of the standard normal distribution, by Box and Muller in double precision.
NIBBLE_HD double initial_normal(std::uint64_t seed, std::uint64_t tensor, std::uint64_t element) {
  const PhiloxBlock b = initial_bits(seed, tensor, element);
  const double radius = std::sqrt(-2.0 * std::log(open_unit(b.word[0], b.word[1])));
  return radius * std::cos(6.283185307179586476925286766559 * open_unit(b.word[2], b.word[3]));
}

}  // namespace nibble
