// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

#include "base/hd.h"

/// The exponential and its relatives in FP32, written so that a plain loop over them vectorises and gives the
/// same bits at every SIMD level (no branches, no table, fused multiply-adds where written). The error bounds
/// are measured over the whole range of arguments in vector_math_test.cpp; one ulp is that of the exact
/// result.
namespace nibble {

/// e^x. Error <= 1 ulp for normal results, <= 1 step for subnormal ones; NaN stays NaN, exp(-inf) = 0,
/// overflow is +inf.
NIBBLE_HD float vexp(float x) {
  // Outside these bounds the result is 0 or infinity anyhow, and inside n fits in ten bits. A NaN fails both
  // comparisons and passes through.
  float y = x < -104.0f ? -104.0f : x;
  y = y > 89.0f ? 89.0f : y;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = fmaf(y, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  float r = fmaf(n, -0x1.62e400p-1f, y);  // the leading bits of ln 2: n times them is exact
  r = fmaf(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a234ep-10f;
  p = fmaf(p, r, 0x1.123a6cp-7f);
  p = fmaf(p, r, 0x1.5558f4p-5f);
  p = fmaf(p, r, 0x1.555490p-3f);
  p = fmaf(p, r, 0x1.fffffcp-2f);
  p = fmaf(p, r * r, r) + 1.0f;
  // 2^n in two factors, so that neither overflows and subnormal results round only in the last product.
  const std::int32_t i = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) << 10) >> 10;
  const std::int32_t half = i >> 1;
  const float a = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float b = std::bit_cast<float>(static_cast<std::uint32_t>(i - half + 127) << 23);
  return p * a * b;
}

/// ln(1 + u) for 0 <= u <= 1 (a NaN stays one). Error <= 2 ulp.
NIBBLE_HD float vlog1p_unit(float u) {
  // ln(1 + u) = 2 atanh(s) with s = u / (2 + u) <= 1/3.
  const float s = u / (2.0f + u);
  const float t = s * s;
  float p = 0.12154162675142288f;
  p = fmaf(p, t, 0.10712925344705582f);
  p = fmaf(p, t, 0.14308518171310425f);
  p = fmaf(p, t, 0.19999437034130096f);
  p = fmaf(p, t, 0.3333333730697632f);
  const float twice = s + s;
  return fmaf(twice * t, p, twice);
}

/// ln(1 + e^x), without overflow. Error <= 3 ulp.
NIBBLE_HD float vsoftplus(float x) {
  const float magnitude = x < 0.0f ? x : -x;  // -|x|, and NaN stays NaN
  const float positive = x > 0.0f ? x : 0.0f;
  return positive + vlog1p_unit(vexp(magnitude));
}

/// 1 / (1 + e^-x). Error <= 3 ulp for x >= -87; below, the result is at most 2^-125 and may be flushed to 0.
NIBBLE_HD float vsigmoid(float x) { return 1.0f / (1.0f + vexp(-x)); }

/// x / (1 + e^-x). Error <= 3 ulp for x >= -87.
NIBBLE_HD float vsilu(float x) { return x / (1.0f + vexp(-x)); }

}  // namespace nibble
