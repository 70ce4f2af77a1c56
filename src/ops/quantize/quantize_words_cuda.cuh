// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"
#include "numeric/random_key.h"
#include "ops/quantize/quantize_cuda.h"
#include "quant/hadamard.h"
#include "quant/nvfp4.h"

/// NVFP4 on packed pairs of BF16 numbers: the arithmetic of quant/nvfp4.h on values that are no NaN. A BF16
/// operand needs E2M1's values and not its codes, so they stay floats; signs, saturation and the block scale
/// are applied to two numbers at a time. Reading x and writing one copy at an H200's copy bandwidth leaves
/// time for about 28 instructions an element, of them 14 integer ones; there are 8 after the amax of a block
/// is known, for codes too and under stochastic rounding, where a random byte takes 2 more. Device code only.
namespace nibble::cuda {

/// The larger of both 16-bit halves.
__device__ __forceinline__ std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a, b);
}
__device__ __forceinline__ std::uint32_t largest_half(std::uint32_t x) {
  const std::uint32_t high = x >> 16, low = x & 0xFFFFu;
  return high < low ? low : high;
}
__device__ __forceinline__ std::uint32_t min_halves(std::uint32_t a, std::uint32_t b) {
  return __vminu2(a, b);
}
__device__ __forceinline__ std::uint32_t min3_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return __vimin3_u16x2(a, b, c);
}

inline constexpr std::uint32_t kMagnitudes = 0x7FFF7FFFu, kSigns = 0x80008000u;

/// The BF16 number in the low (0) or high (1) half of a word.
__device__ __forceinline__ float half_value(std::uint32_t word, int half) {
  return bits_float(half == 0 ? word << 16 : word & 0xFFFF0000u);
}
/// Two floats that are BF16 numbers, the first in the low half.
__device__ __forceinline__ std::uint32_t pack_exact(float low, float high) {
  return __byte_perm(float_bits(low), float_bits(high), 0x7632);
}
/// Two floats rounded to BF16: bf16::nearest, a NaN's payload excepted.
__device__ __forceinline__ std::uint32_t pack_rounded(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return bf16::nearest(low).bits | static_cast<std::uint32_t>(bf16::nearest(high).bits) << 16;
#endif
}

/// The products of two pairs of positive BF16 numbers, which must be exact.
__device__ __forceinline__ std::uint32_t multiply_exact(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint32_t word;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(kSigns));
  return word;
#else
  return pack_exact(half_value(a, 0) * half_value(b, 0), half_value(a, 1) * half_value(b, 1));
#endif
}

/// Twice a pair of BF16 numbers less another, rounded once.
__device__ __forceinline__ std::uint32_t twice_less(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint32_t word;
  asm("{\n\t"
      ".reg .b32 less;\n\t"
      "neg.bf16x2 less, %2;\n\t"
      "fma.rn.bf16x2 %0, %1, %3, less;\n\t"
      "}"
      : "=r"(word)
      : "r"(a), "r"(b), "r"(0x40004000u));
  return word;
#else
  return pack_rounded(2 * half_value(a, 0) - half_value(b, 0), 2 * half_value(a, 1) - half_value(b, 1));
#endif
}

__device__ __forceinline__ std::uint32_t magnitudes(std::uint32_t word) { return word & kMagnitudes; }

/// The larger magnitude of both halves, with any sign.
__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
  std::uint32_t word;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
#else
  return max_halves(magnitudes(a), magnitudes(b));
#endif
}

/// hadamard16 without its signs and without its factor or, under kQuarter, with it. It comes in with the last
/// addition, which rounds the same number a quarter as large: only where a sum overflows is the result
/// another, and there the tensor's amax says so.
template <bool kQuarter>
__device__ __forceinline__ void butterflies16(float (&x)[16]) {
#pragma unroll
  for (int distance = 1; distance < (kQuarter ? 8 : 16); distance *= 2) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i & distance) continue;
      const float low = x[i], high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
  if constexpr (!kQuarter) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float low = 0.25f * x[i], high = x[i + 8];
    x[i] = fmaf(0.25f, high, low);
    x[i + 8] = fmaf(-0.25f, high, low);
  }
}

/// A tensor's block scales under Profile::Te. What a scale's byte stands for is looked up, which is cheaper
/// than a division a block. Lies in shared memory.
struct ScaleTable {
  /// x: block_multiplier; y: the bits of the scale, twice, as BF16.
  float2 entry[128];
  /// A BF16 number, twice, that the multiplier takes to about 6.5: codes of magnitudes from there on are 7.
  std::uint32_t limit[128];
  float factor;

  /// By all threads of a block; a barrier must follow.
  __device__ __forceinline__ void fill(const TensorScale& g) {
    for (int s = threadIdx.x; s < 128; s += blockDim.x) {
      const E4M3 scale{static_cast<std::uint8_t>(s)};
      const float value = scale.value(), multiplier = block_multiplier(scale, g), limited = 6.5f / multiplier;
      entry[s] = make_float2(multiplier, bits_float(pack_exact(value, value)));
      limit[s] = pack_exact(limited, limited);
    }
    if (threadIdx.x == 0) factor = g.encode * nvfp4::kOneSixth;
  }

  /// block_scale of the block whose largest magnitude is in a half of `most`, whatever the signs there: what is
  /// no NaN needs only its last steps, and an infinite quotient saturates like FLT_MAX.
  __device__ __forceinline__ std::uint32_t of(std::uint32_t most) const {
    const float quotient = fmaxf(fabsf(half_value(most, 0)), fabsf(half_value(most, 1))) * factor;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint16_t bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(quotient));
    return bits;
#else  // no FP8 conversions before Ada
    return min(E4M3::Bits::nearest(float_bits(quotient)), std::uint32_t{E4M3::kMaxBits});
#endif
  }
};

/// |E2M1::nearest(x)| for x >= 0 before it is bounded by 6: x and 1.5 * 2^22 times its binade share the last
/// bit of the wanted precision, so their sum is rounded there, ties to the even code. Below 2 the step is
/// that of [1, 2). An infinity gives a NaN.
__device__ __forceinline__ float nearest_e2m1(float x) {
  constexpr float kMagic = 6291456.0f;
  const float binade = fmaxf(bits_float(float_bits(x) & kInfinityBits), 1.0f);
  return fmaf(-binade, kMagic, fmaf(binade, kMagic, x));
}

/// What |x| < 8 is added to so that the sum is rounded as E2M1 rounds: 4 less than 1.5 * 2^22 below 2, 6 less
/// than 1.75 * 2^23 below 4, 8 less than 1.375 * 2^24 above, all from two bits of x by one product. The sum
/// less this is |E2M1::nearest(x)|, not yet bounded by 6, and its last 20 bits are the code - 8.
__device__ __forceinline__ float rounding_shift(float x) {
  return fmaf(bits_float(float_bits(x) & 0x40800000u), 4194303.0f, 6291452.0f);
}

/// The codes, without signs, of eight magnitudes that are rounded in these sums with rounding_shift. Four
/// sums in steps of 16 leave four codes + 0x7778 in 16 bits.
__device__ __forceinline__ std::uint32_t code_word(const float (&sums)[8]) {
  std::uint32_t part[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    part[k] = float_bits(sums[4 * k + 3]);
#pragma unroll
    for (int j = 2; j >= 0; --j) part[k] = part[k] * 16 + float_bits(sums[4 * k + j]);
  }
  return __byte_perm(part[0], part[1], 0x5410) - 0x77787778u;
}

/// Four bytes of the words a and b, each filled with its highest bit: the selector is __byte_perm's + 0x8888.
template <std::uint32_t kBytes>
__device__ __forceinline__ std::uint32_t byte_signs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t word;
#ifdef __CUDA_ARCH__
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "n"(kBytes));
#else
  word = (__byte_perm(a, b, kBytes & 0x7777u) >> 7 & 0x01010101u) * 255u;
#endif
  return word;
}

/// A word of eight codes with the signs of the eight BF16 numbers that they come from.
__device__ __forceinline__ std::uint32_t with_signs(std::uint32_t codes, const uint4& x) {
  const std::uint32_t low = __byte_perm(x.x, x.y, 0x7531), high = __byte_perm(x.z, x.w, 0x7531);
  const std::uint32_t even = byte_signs<0xECA8>(low, high), odd = byte_signs<0xFDB9>(low, high);
  return codes | (((even & 0x0F0F0F0Fu) | (odd & 0xF0F0F0F0u)) & 0x88888888u);
}

/// E2M1::stochastic of two numbers >= 0, not yet bounded by 6, by adding a random number below the step and
/// cutting off. Below 1 (1 + x) / 2 stands for x, cut off at 2^-24: the step 0.5 has the place of the
/// mantissa's first bit there too, and exponent and that bit are the code + 252 everywhere. Each random is the
/// byte times 2^14.
struct StochasticPair {
  std::uint32_t sums;  ///< the upper halves; their last six bits say nothing

  __device__ __forceinline__ StochasticPair(float low, float high, std::uint32_t random_low,
                                            std::uint32_t random_high) {
    sums = __byte_perm(standing_for(low) + random_low, standing_for(high) + random_high, 0x7632);
  }

  /// As BF16 operands without signs: times the block scale, bounded by 6 of it (infinities and NaNs, being
  /// above as integers, too). Of the rounded sum s and 2 s - 1 the number is the smaller.
  __device__ __forceinline__ std::uint32_t operands(std::uint32_t scale) const {
    const std::uint32_t scaled = multiply_exact(sums & 0xFFC0FFC0u, scale);
    return min3_halves(scaled, twice_less(scaled, scale), multiply_exact(0x40C040C0u, scale));
  }

  /// As codes, bounded by 7, in bits 6 to 8 of each half.
  __device__ __forceinline__ std::uint32_t codes() const {
    return min_halves(sums - 0x3F003F00u, 0x01FF01FFu) & 0x01C001C0u;
  }

 private:
  __device__ static __forceinline__ std::uint32_t standing_for(float x) {
    return float_bits(fmaxf(x, __fmaf_rz(x, 0.5f, 0.5f)));
  }
};

/// Four pairs of codes in bits 6 to 8 of each half as one word of eight.
__device__ __forceinline__ std::uint32_t word_of_pairs(const std::uint32_t (&pairs)[4]) {
  const std::uint32_t first = (pairs[0] >> 6) + pairs[1] * 4, second = (pairs[2] >> 6) + pairs[3] * 4;
  return __byte_perm(first, second, 0x5410) + __byte_perm(first, second, 0x7632) * 16;
}

/// The magnitude of a half of a word, times a multiplier.
__device__ __forceinline__ float scaled_magnitude(std::uint32_t word, int half, float multiplier) {
  return fabsf(half_value(word, half)) * multiplier;
}

/// Two BF16 numbers under a scale of the table as BF16 operands: rounded with these random bits under
/// kStochastic and else to nearest.
template <bool kStochastic>
__device__ __forceinline__ std::uint32_t operands_of(std::uint32_t x, std::uint32_t scale,
                                                     const ScaleTable& table, std::uint32_t random_low,
                                                     std::uint32_t random_high) {
  const float2 entry = table.entry[scale];
  const std::uint32_t factor = float_bits(entry.y);
  const float low = scaled_magnitude(x, 0, entry.x), high = scaled_magnitude(x, 1, entry.x);
  std::uint32_t operands;
  if constexpr (kStochastic) {
    operands = StochasticPair(low, high, random_low, random_high).operands(factor);
  } else {
    const std::uint32_t rounded = pack_exact(nearest_e2m1(low), nearest_e2m1(high));
    operands = min_halves(multiply_exact(rounded, factor), multiply_exact(0x40C040C0u, factor));
  }
  return operands | (x & kSigns);
}

/// The codes of a chunk under a scale of the table: rounded with these random bits under kStochastic and else
/// to nearest.
template <bool kStochastic>
__device__ __forceinline__ std::uint32_t codes_of(const uint4& x, std::uint32_t scale,
                                                  const ScaleTable& table, const std::uint32_t (&random)[8]) {
  const float multiplier = table.entry[scale].x;
  const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
  std::uint32_t codes;
  if constexpr (kStochastic) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] =
          StochasticPair(scaled_magnitude(words[j], 0, multiplier), scaled_magnitude(words[j], 1, multiplier),
                         random[2 * j], random[2 * j + 1])
              .codes();
    codes = word_of_pairs(pairs);
  } else {
    const std::uint32_t limit = table.limit[scale];
    float sums[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float y = half_value(min_halves(magnitudes(words[j / 2]), limit), j % 2) * multiplier;
      sums[j] = y + rounding_shift(y);
    }
    codes = code_word(sums);
  }
  return with_signs(codes, x);
}

/// Byte j of a word times 2^14.
__device__ __forceinline__ std::uint32_t random_of(std::uint32_t word, int j) {
  return __byte_perm(word, 0, 0x4404 | j << 4) * 64;
}

/// The product in one instruction; of the plain expression the compiler makes one for each half.
__device__ __forceinline__ void multiply_wide(std::uint32_t a, std::uint32_t b, std::uint32_t& low,
                                              std::uint32_t& high) {
#ifdef __CUDA_ARCH__
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
#else
  const std::uint64_t product = std::uint64_t{a} * b;
#endif
  low = static_cast<std::uint32_t>(product);
  high = static_cast<std::uint32_t>(product >> 32);
}

/// random_bytes as one vector, of a key whose bits are not stuck: philox of the same counter, with wide
/// products. `keys`: of key.seed.
__device__ __forceinline__ uint4 draw_sixteen(const PhiloxKeys& keys, const RandomKey& key,
                                              std::uint64_t group) {
  uint4 c = make_uint4(static_cast<std::uint32_t>(group), key.step, key.layer << 8 | key.role,
                       static_cast<std::uint32_t>(group >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    std::uint32_t low0, high0, low1, high1;
    multiply_wide(0xD2511F53u, c.x, low0, high0);
    multiply_wide(0xCD9E8D57u, c.z, low1, high1);
    c = make_uint4(high1 ^ c.y ^ keys.first[round], low1, high0 ^ c.w ^ keys.second[round], low0);
  }
  return c;
}

}  // namespace nibble::cuda
