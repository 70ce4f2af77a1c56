// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw_kernels.h"

#include "ops/lanes.h"

namespace nibble::cpu::NIBBLE_SIMD {

void adamw_row(const AdamWStep& s, const float* __restrict grad, float* __restrict w, float* __restrict m,
               float* __restrict v, std::int64_t n) {
  const AdamWStep k = s;  // a copy: the loop's stores cannot change it
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * k.grad_scale;
    const float mi = k.beta1 * m[i] + k.one_minus_beta1 * g;
    const float vi = k.beta2 * v[i] + k.one_minus_beta2 * g * g;
    const float mhat = mi * k.inverse_correction1, vhat = vi * k.inverse_correction2;
    m[i] = mi;
    v[i] = vi;
    w[i] -= k.lr * (mhat / (__builtin_sqrtf(vhat) + k.eps) + k.weight_decay * w[i]);
  }
}

namespace {

/// Sum in eight lanes; add(sum, x) adds nothing for x = 0.
template <class F>
double sum_lanes(const float* x, std::int64_t n, F add) {
  using lanes::D8;
  D8 acc = {}, a = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) a[j] = static_cast<double>(x[i + j]);
    add(acc, a);
  }
  for (int j = 0; j < 8; ++j) a[j] = i + j < n ? static_cast<double>(x[i + j]) : 0.0;
  add(acc, a);
  return lanes::sum(acc);
}

}  // namespace

double sum_squares_row(const float* x, std::int64_t n) {
  return sum_lanes(x, n, [](lanes::D8& sum, const lanes::D8& a) { sum += a * a; });
}

double sum_row(const float* x, std::int64_t n) {
  return sum_lanes(x, n, [](lanes::D8& sum, const lanes::D8& a) { sum += a; });
}

}  // namespace nibble::cpu::NIBBLE_SIMD
