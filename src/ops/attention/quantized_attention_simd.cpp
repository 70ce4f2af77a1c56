// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/quantized_attention_kernels.h"

namespace nibble::cpu::NIBBLE_SIMD {

void add_scaled(double* __restrict to, double a, const float* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += a * static_cast<double>(x[i]);
}

}  // namespace nibble::cpu::NIBBLE_SIMD
