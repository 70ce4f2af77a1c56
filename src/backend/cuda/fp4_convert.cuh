// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "numeric/e2m1.h"
#include "quant/rounders.h"

/// E2M1 codes as Blackwell's conversion instructions make them [PTX], and the rounder of numeric/e2m1.h where
/// a card has no such instruction: the same codes for every value but NaN, which callers find before.
///
///   sm_100a, sm_103a   cvt.rn (nearest even) and cvt.rs (stochastic)
///   sm_120a            cvt.rn; stochastic by the rounder
///   anything else      the rounder
///
/// Conversions to a pair: the first value in the low half of the byte, as stored codes have it.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define NIBBLE_CVT_RN_E2M1 1
#define NIBBLE_CVT_RS_E2M1 1
#elif defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define NIBBLE_CVT_RN_E2M1 1
#endif

namespace nibble::cuda {

/// Nearest even, saturating: the bytes of pack_codes(E2M1::nearest(low), E2M1::nearest(high)).
__device__ __forceinline__ std::uint8_t e2m1_pair(float low, float high) {
#ifdef NIBBLE_CVT_RN_E2M1
  std::uint32_t codes;
  asm("{\n\t.reg .b8 pair;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2;\n\t"
      "cvt.u32.u8 %0, pair;\n\t}"
      : "=r"(codes)
      : "f"(high), "f"(low));
  return static_cast<std::uint8_t>(codes);
#else
  return pack_codes(E2M1::nearest(low), E2M1::nearest(high));
#endif
}

/// Four values, rounded up or down by one random byte each: byte j of `random` serves x[j]. Value j lies in
/// nibble j of the result.
__device__ __forceinline__ std::uint16_t e2m1_stochastic_quad(const float (&x)[4], std::uint32_t random) {
#ifdef NIBBLE_CVT_RS_E2M1
  // Of the four inputs the first two take the upper bytes of the two halves of the random word, the last two
  // the lower ones: the bytes in the middle change places. That is the documentation's wording; no card has
  // confirmed it here, and the test of label "gpu" fails on one that disagrees. [PTX]
  const std::uint32_t word = __byte_perm(random, 0, 0x3120);
  std::uint16_t codes;
  asm("cvt.rs.satfinite.e2m1x4.f32 %0, {%1, %2, %3, %4}, %5;"
      : "=h"(codes)
      : "f"(x[3]), "f"(x[2]), "f"(x[1]), "f"(x[0]), "r"(word));
  return codes;
#else
  std::uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    codes |=
        static_cast<std::uint32_t>(E2M1::stochastic(x[j], static_cast<std::uint8_t>(random >> (8 * j))).code)
        << (4 * j);
  return static_cast<std::uint16_t>(codes);
#endif
}

}  // namespace nibble::cuda
