// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "ops/quantize/quantize_kernels.h"

/// Sixteen numbers at a time, for files compiled once per instruction set. Vector extensions rather than
/// plain loops: the width is the algorithm here (a block, a tile), and the compiler splits it where registers
/// are narrower. Everything is forced inline, so no copy can leak from one instruction set into another.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace nibble::cpu::NIBBLE_SIMD {

typedef float F16 __attribute__((vector_size(64)));
typedef std::uint32_t U16 __attribute__((vector_size(64)));
typedef std::int32_t I16 __attribute__((vector_size(64)));
typedef std::uint16_t H16 __attribute__((vector_size(32)));
typedef std::uint8_t B16 __attribute__((vector_size(16)));
typedef std::uint64_t L8 __attribute__((vector_size(64)));
typedef std::uint8_t B8 __attribute__((vector_size(8)));

#define NIBBLE_LANES static inline __attribute__((always_inline))

template <class V>
NIBBLE_LANES V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}
template <class V>
NIBBLE_LANES void store(void* to, const V& v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

NIBBLE_LANES F16 as_float(const U16& u) { return reinterpret_cast<F16>(u); }
NIBBLE_LANES U16 as_bits(const F16& f) { return reinterpret_cast<U16>(f); }
NIBBLE_LANES F16 all(float x) { return F16{} + x; }
NIBBLE_LANES U16 min_of(const U16& a, const U16& b) { return a < b ? a : b; }
NIBBLE_LANES U16 max_of(const U16& a, const U16& b) { return a > b ? a : b; }
NIBBLE_LANES F16 widen(const H16& h) { return as_float(__builtin_convertvector(h, U16) << 16); }

/// The upper halves of numbers that BF16 holds exactly.
NIBBLE_LANES H16 narrow_exact(const F16& x) { return __builtin_convertvector(as_bits(x) >> 16, H16); }

/// bf16::nearest in every lane, still as 32 bits.
NIBBLE_LANES U16 nearest_bf16(const F16& x) {
  const U16 u = as_bits(x);
  const U16 rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const U16 quiet = ((u >> 16) & 0x8000u) | 0x7FC0u;
  return (u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded;
}

/// A NaN's bits replaced by 0; other magnitudes as they are.
NIBBLE_LANES U16 without_nan(const U16& magnitude) { return magnitude > kInfinityBits ? U16{} : magnitude; }

NIBBLE_LANES U16 magnitude_of(const F16& x) { return as_bits(x) & 0x7FFFFFFFu; }

/// The sign of the code of v: that of v, and + for a NaN.
template <bool kSeesNan>
NIBBLE_LANES U16 code_sign(const F16& v) {
  const U16 sign = as_bits(v) & 0x80000000u;
  if constexpr (!kSeesNan) return sign;
  return magnitude_of(v) > kInfinityBits ? U16{} : sign;
}

/// Magnitudes above 6, infinities and NaN become 6 before the rounding, which changes no result of it.
NIBBLE_LANES U16 saturated_e2m1(const F16& v) { return min_of(magnitude_of(v), U16{} + 0x40C00000u); }

/// Rounders: a saturated magnitude to an E2M1 magnitude, bit for bit as numeric/e2m1.h.
struct NearestLanes {
  static constexpr Rounding kRounding = Rounding::NearestEven;
  /// Adding 2^22 units of the last place that the binade has in E2M1 leaves no bits below that place.
  NIBBLE_HD static F16 round(const U16& a, const U16&) {
    const F16 magic = as_float((max_of(a, U16{} + 0x3F800000u) & 0x7F800000u) + (22u << 23));
    return (as_float(a) + magic) - magic;
  }
};
struct StochasticLanes {
  static constexpr Rounding kRounding = Rounding::Stochastic;
  NIBBLE_HD static F16 round(const U16& a, const U16& random) {
    const U16 normal = (a + (random << 14)) & 0xFFC00000u;
    const I16 units = __builtin_convertvector(as_float(a) * 512.0f, I16);
    const F16 subnormal = __builtin_convertvector((units + (I16)random) >> 8, F16) * 0.5f;
    return a < 0x3F800000u ? subnormal : as_float(normal);
  }
};
struct StochasticExactLanes {
  static constexpr Rounding kRounding = Rounding::StochasticExact;
  NIBBLE_HD static F16 round(const U16& a, const U16& random) {
    const U16 normal = (a + (random >> 2)) & 0xFFC00000u;
    const I16 units = __builtin_convertvector(as_float(a) * 33554432.0f, I16);
    const F16 subnormal = __builtin_convertvector((units + (I16)random) >> 24, F16) * 0.5f;
    return a < 0x3F800000u ? subnormal : as_float(normal);
  }
};

/// The code of an E2M1 magnitude under a sign bit.
NIBBLE_LANES U16 e2m1_code(const F16& value, const U16& sign) {
  const U16 bits = as_bits(value);
  // Exponent and first mantissa bit count the codes up, but for 0.5 and 1, which are two apart.
  const U16 counted = max_of(bits, U16{} + 0x3F400000u) >> 22;
  return (bits == 0u ? U16{} : counted - 0xFCu) | (sign >> 28);
}

/// What sixteen blocks are scaled by.
struct alignas(64) BlockScales {
  float multiplier[16];    ///< value to code
  float scale[16];         ///< code to operand
  std::uint8_t bytes[16];  ///< the scale as it is stored
};

NIBBLE_LANES void nvfp4_scales(const U16& amax, const QuantizeJob& job, BlockScales& out) {
  alignas(64) float block_amax[16];
  store(block_amax, amax);
  const TensorScale g = job.nvfp4;
  const Profile profile = job.spec.profile;
  for (int l = 0; l < 16; ++l) {
    const E4M3 scale = block_scale(block_amax[l], g, profile);
    out.multiplier[l] = block_multiplier(scale, g);
    out.scale[l] = scale.value();
    out.bytes[l] = scale.bits;
  }
}

/// The random bytes of sixteen groups: out[16 i + j] serves element 16 group[i] + j.
NIBBLE_LANES void random_groups(const RandomKey& key, const std::uint64_t (&group)[16], std::uint8_t* out) {
  alignas(64) std::uint32_t c0[16], c1[16], c2[16], c3[16];
  for (int l = 0; l < 16; ++l) {
    c0[l] = static_cast<std::uint32_t>(group[l]);
    c1[l] = key.step;
    c2[l] = (key.layer << 8) | key.role;
    c3[l] = static_cast<std::uint32_t>(group[l] >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key.seed);
  auto k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < 16; ++l) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[l];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2[l];
      c0[l] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      c1[l] = static_cast<std::uint32_t>(p1);
      c2[l] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c3[l] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int l = 0; l < 16; ++l) {
    const std::uint32_t words[4] = {c0[l], c1[l], c2[l], c3[l]};
    __builtin_memcpy(out + 16 * l, words, 16);
  }
}

/// Calls f with the rounder that the job asks for, as a type.
template <class F>
NIBBLE_LANES void with_rounder(Rounding rounding, F f) {
  if (rounding == Rounding::NearestEven) return f(NearestLanes{});
  if (rounding == Rounding::Stochastic) return f(StochasticLanes{});
  f(StochasticExactLanes{});
}

}  // namespace nibble::cpu::NIBBLE_SIMD
