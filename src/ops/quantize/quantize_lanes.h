// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/hd.h"
#include "numeric/e8m0.h"
#include "ops/quantize/quantize_kernels.h"
#include "quant/mxfp4.h"

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

/// Conversions between widths. The compiler's own are several times slower where one instruction would do
/// (GCC 12 takes bytes apart one by one).
NIBBLE_LANES U16 widen_bytes(const void* from) {
#if defined(__AVX512F__)
  return (U16)_mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)load<B16>(from));
#elif defined(__AVX2__)
  U16 out;
  for (int i = 0; i < 2; ++i) {
    const auto part = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
    store(reinterpret_cast<char*>(&out) + 32 * i, part);
    from = static_cast<const char*>(from) + 8;
  }
  return out;
#else
  return __builtin_convertvector(load<B16>(from), U16);
#endif
}
NIBBLE_LANES U16 widen_halves(const H16& h) {
#if defined(__AVX512F__)
  return (U16)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)h);
#else
  return __builtin_convertvector(h, U16);
#endif
}
NIBBLE_LANES B16 narrow_bytes(const U16& u) {
#if defined(__AVX512F__)
  return (B16)_mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)u);
#else
  return __builtin_convertvector(u, B16);
#endif
}
NIBBLE_LANES void store_eight_bytes(void* to, const L8& u) {
#if defined(__AVX512F__)
  _mm_storel_epi64(static_cast<__m128i*>(to), _mm512_maskz_cvtepi64_epi8(0xFF, (__m512i)u));
#else
  store(to, __builtin_convertvector(u, B8));
#endif
}
NIBBLE_LANES F16 widen(const H16& h) { return as_float(widen_halves(h) << 16); }

/// The upper halves of numbers that BF16 holds exactly.
NIBBLE_LANES H16 narrow_exact(const F16& x) { return __builtin_convertvector(as_bits(x) >> 16, H16); }

/// bf16::nearest in every lane, widened again.
NIBBLE_LANES F16 rounded_to_bf16(const F16& x) {
  const U16 u = as_bits(x);
  const U16 rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  const U16 quiet = (u & 0x80000000u) | 0x7FC00000u;
  return as_float(x != x ? quiet : rounded);
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
struct BlockScales {
  F16 multiplier;  ///< value to code
  F16 scale;       ///< code to operand
  B16 bytes;       ///< the scale as it is stored
};

/// SmallFloat::nearest and SmallFloat::value in every lane: Bits is E4M3::Bits or another.
template <class Bits>
NIBBLE_LANES U16 small_nearest(const U16& magnitude) {
  const U16 odd = (magnitude >> Bits::kShift) & 1u;
  const U16 normal = ((magnitude + ((1u << (Bits::kShift - 1)) - 1u) + odd) >> Bits::kShift) - Bits::kRebias;
  constexpr std::uint32_t kMagic = Bits::kStep + (23u << 23);
  const U16 subnormal = as_bits(as_float(magnitude) + bits_float(kMagic)) - kMagic;
  return magnitude < Bits::kMinNormal ? subnormal : normal;
}
template <class Bits>
NIBBLE_LANES F16 small_value(const U16& code) {
  constexpr std::uint32_t kFirstNormal = Bits::kMinNormal >> Bits::kShift;
  const F16 subnormal = __builtin_convertvector((I16)code, F16) * bits_float(Bits::kStep);
  return code < kFirstNormal - Bits::kRebias ? subnormal : as_float((code + Bits::kRebias) << Bits::kShift);
}
NIBBLE_LANES F16 min_or_limit(const F16& x, float limit) { return x < limit ? x : all(limit); }

/// block_scale and block_multiplier of quant/nvfp4.h.
NIBBLE_LANES BlockScales nvfp4_scales(const U16& block_amax, const QuantizeJob& job) {
  const TensorScale& g = job.nvfp4;
  const F16 amax = as_float(block_amax) * job.amax_factor;
  const F16 t =
      job.spec.profile == Profile::Te ? amax * (g.encode * nvfp4::kOneSixth) : (amax / 6.0f) * g.encode;
  const U16 code =
      min_of(small_nearest<E4M3::Bits>(as_bits(min_or_limit(t, kFloatMax))), U16{} + E4M3::kMaxBits);
  const F16 scale = small_value<E4M3::Bits>(code);
  return {min_or_limit(1.0f / (scale * g.decode), kFloatMax), scale, narrow_bytes(code)};
}

/// 2^(code - 127), and its inverse, as E8M0 has them.
NIBBLE_LANES BlockScales powers_of_two(const U16& code) {
  const auto power = [](const U16& bits) { return as_float(bits == 0u ? U16{} + 0x00400000u : bits << 23); };
  return {power(254u - code), power(code), narrow_bytes(code)};
}

/// The power of two above amax / largest element, as E8M0::round_up, value and inverse have it.
NIBBLE_LANES BlockScales mx_scales(const U16& block_amax, float inverse_max) {
  const U16 u = as_bits(as_float(block_amax) * inverse_max);
  const U16 exponent = (u >> 23) & 0xFFu, mantissa = u & 0x7FFFFFu;
  const U16 limit = exponent == 0u ? U16{} + 0x400000u : U16{};
  return powers_of_two(min_of(exponent + (mantissa > limit ? U16{} + 1u : U16{}), U16{} + 0xFEu));
}

/// MXFP4 under MxScaleRule::ThreeQuarters, of finite numbers.
NIBBLE_LANES BlockScales three_quarter_scales(const U16& block_amax) {
  const U16 exponent = block_amax >> 23;
  BlockScales scales = powers_of_two(exponent > 2u ? exponent - 2u : U16{});
  scales.multiplier = scales.multiplier * kThreeQuarters;
  return scales;
}

/// The products of the even lanes (of 32 bits) with a constant: 64 bits each. There is no way to say "the
/// upper half of every lane is unused" with vector extensions, hence the instruction itself.
NIBBLE_LANES L8 multiply_low(const L8& a, std::uint32_t by) {
  L8 out;
#if defined(__AVX512F__)
  out = (L8)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(by));
#elif defined(__AVX2__)
  for (int i = 0; i < 2; ++i) {
    const auto part = load<__m256i>(reinterpret_cast<const char*>(&a) + 32 * i);
    store(reinterpret_cast<char*>(&out) + 32 * i, _mm256_mul_epu32(part, _mm256_set1_epi64x(by)));
  }
#else
  for (int i = 0; i < 8; ++i) out[i] = (a[i] & 0xFFFFFFFFu) * by;
#endif
  return out;
}

/// The key of each of Philox's ten rounds, for the two words it enters.
struct RoundKeys {
  std::uint64_t low[10], high[10];
};
NIBBLE_LANES RoundKeys round_keys(const RandomKey& key) {
  RoundKeys keys;
  auto low = static_cast<std::uint32_t>(key.seed), high = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
    keys.low[round] = low;
    keys.high[round] = high;
  }
  return keys;
}

/// The random bytes of sixteen groups: out[16 i + j] serves element 16 (first + i step) + j. Each 64-bit lane
/// carries one 32-bit word; what is in its upper half is never read.
NIBBLE_LANES void random_groups(const RandomKey& key, const RoundKeys& keys, std::uint64_t first,
                                std::uint64_t step, std::uint8_t* out) {
  L8 c0[2], c1[2], c2[2], c3[2];
  for (int h = 0; h < 2; ++h) {
    c0[h] = first + step * (L8{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<std::uint64_t>(8 * h));
    c1[h] = L8{} + key.step;
    c2[h] = L8{} + ((key.layer << 8) | key.role);
    c3[h] = c0[h] >> 32;
  }
  for (int round = 0; round < 10; ++round) {
    for (int h = 0; h < 2; ++h) {
      const L8 p0 = multiply_low(c0[h], 0xD2511F53u), p1 = multiply_low(c2[h], 0xCD9E8D57u);
      c0[h] = (p1 >> 32) ^ c1[h] ^ keys.low[round];
      c1[h] = p1;
      c2[h] = (p0 >> 32) ^ c3[h] ^ keys.high[round];
      c3[h] = p0;
    }
  }
  const L8 drawn = L8{} + (key.stuck_at_zero ? std::uint64_t{0} : ~std::uint64_t{0});
  for (int h = 0; h < 2; ++h) {
    const L8 low = drawn & ((c0[h] & 0xFFFFFFFFu) | c1[h] << 32),
             high = drawn & ((c2[h] & 0xFFFFFFFFu) | c3[h] << 32);
    store(out + 128 * h, __builtin_shuffle(low, high, L8{0, 8, 1, 9, 2, 10, 3, 11}));
    store(out + 128 * h + 64, __builtin_shuffle(low, high, L8{4, 12, 5, 13, 6, 14, 7, 15}));
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
