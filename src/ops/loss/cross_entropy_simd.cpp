// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/cross_entropy_kernels.h"

#include "ops/lanes.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

/// The maximum; a NaN anywhere comes out as NaN or is found again by the exponentials.
float max_of(const float* x, std::int64_t n) {
  using namespace lanes;
  if (n < kLanes) {
    float m = x[0];
    for (std::int64_t i = 1; i < n; ++i) m = x[i] > m ? x[i] : m;
    return m;
  }
  F16 acc, a;
  load(acc, x);
  for (std::int64_t i = kLanes; i + kLanes <= n; i += kLanes) {
    load(a, x + i);
    acc = a > acc ? a : acc;
  }
  load(a, x + n - kLanes);  // the last ones, some of them for the second time
  acc = a > acc ? a : acc;
  float m = acc[0];
  for (int i = 1; i < kLanes; ++i) m = acc[i] > m ? acc[i] : m;
  return m;
}

float sum_of_block(const float* x, std::int64_t n) {
  using namespace lanes;
  F16 acc = {}, a;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    load(a, x + i);
    acc += a;
  }
  load_tail(a, x + i, n - i);
  acc += a;
  return sum(acc);
}

/// Blocks are added in double: 50,000 additions in FP32 would lose more than the loss may.
float sum_of(const float* x, std::int64_t n) {
  constexpr std::int64_t kBlock = 4096;
  double total = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) total += sum_of_block(x + i, n - i < kBlock ? n - i : kBlock);
  return static_cast<float>(total);
}

}  // namespace

float exp_row(const float* __restrict x, float* __restrict e, float* __restrict max, std::int64_t n) {
  const float m = max_of(x, n);
  *max = m;
  for (std::int64_t i = 0; i < n; ++i) e[i] = vexp(x[i] - m);
  return sum_of(e, n);
}

void scaled_row(const float* __restrict e, float factor, float* __restrict d, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) d[i] = e[i] * factor;
}

}  // namespace nibble::cpu::NIBBLE_SIMD
