// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope_kernels.h"

namespace nibble::cpu::NIBBLE_SIMD {

void rotate_pairs(float* __restrict x, float* __restrict y, const float* __restrict c,
                  const float* __restrict sin, float sign, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = sin[i] * sign, a = x[i], b = y[i];
    x[i] = a * c[i] - b * s;
    y[i] = b * c[i] + a * s;
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
