// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise_kernels.h"

#include <cmath>

#include "numeric/bf16.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {

void swiglu_row(const float* __restrict g, const float* __restrict u, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = vsilu(g[i]) * u[i];
}

void swiglu_row_backward(const float* __restrict g, const float* __restrict u, const float* __restrict dy,
                         float* __restrict dg, float* __restrict du, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = vsigmoid(g[i]);
    dg[i] = dy[i] * u[i] * s * (1.0f + g[i] * (1.0f - s));
    du[i] = dy[i] * g[i] * s;
  }
}

void squared_relu_row(const float* x, float* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    // Written so that a NaN stays one.
    const float r = x[i] < 0.0f ? 0.0f : x[i];
    y[i] = r * r;
  }
}

void squared_relu_row_backward(const float* y, bool is_bf16, const float* dy, float* dx, std::int64_t n) {
  if (is_bf16) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) dx[i] = 2.0f * bf16::nearest(std::sqrt(y[i])).value() * dy[i];
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) dx[i] = 2.0f * std::sqrt(y[i]) * dy[i];
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
