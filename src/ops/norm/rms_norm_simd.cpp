// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm_kernels.h"

#include "ops/lanes.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

/// Sum of x y z.
float dot3(const float* x, const float* y, const float* z, std::int64_t n) {
  using namespace lanes;
  F16 acc = {}, a, b, c;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    load(a, x + i);
    load(b, y + i);
    load(c, z + i);
    acc += a * b * c;
  }
  load_tail(a, x + i, n - i);
  load_tail(b, y + i, n - i);
  load_tail(c, z + i, n - i);
  acc += a * b * c;
  return sum(acc);
}

float sum_squares(const float* x, std::int64_t n) {
  using namespace lanes;
  F16 acc = {}, a;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    load(a, x + i);
    acc += a * a;
  }
  load_tail(a, x + i, n - i);
  acc += a * a;
  return sum(acc);
}

}  // namespace

float norm_row(const float* __restrict x, const float* __restrict w, float* __restrict y, std::int64_t n,
               float eps) {
  const float mean = sum_squares(x, n) / static_cast<float>(n);
  const float rstd = 1.0f / __builtin_sqrtf(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * w[i];
  return rstd;
}

void norm_row_backward(const float* __restrict x, const float* __restrict w, const float* __restrict dy,
                       float rstd, float* __restrict g, float* __restrict dw, std::int64_t n) {
  const float mean = dot3(dy, w, x, n) * rstd / static_cast<float>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const float xhat = x[i] * rstd;
    g[i] += rstd * (dy[i] * w[i] - xhat * mean);
    dw[i] += dy[i] * xhat;
  }
}

void gate_row(const float* __restrict y, const float* __restrict z, float* __restrict r, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) r[i] = y[i] * vsilu(z[i]);
}

void gate_row_backward(const float* __restrict y, const float* __restrict z, const float* __restrict dr,
                       float* __restrict dy, float* __restrict dz, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = vsigmoid(z[i]);
    dy[i] = dr[i] * z[i] * s;
    dz[i] = dr[i] * y[i] * s * (1.0f + z[i] * (1.0f - s));
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
