// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/adamw/adamw.h"

namespace nibble::ref {

void run(Stream&, const AdamW& a) {
  const double b1 = a.beta1, b2 = a.beta2;
  const double correct1 = 1 - std::pow(b1, static_cast<double>(a.step));
  const double correct2 = 1 - std::pow(b2, static_cast<double>(a.step));
  for (std::int64_t i = 0; i < a.w_N.size(0); ++i) {
    const double g = static_cast<double>(a.grad_N(i)) * a.grad_scale;
    a.m_N(i) = static_cast<float>(b1 * a.m_N(i) + (1 - b1) * g);
    a.v_N(i) = static_cast<float>(b2 * a.v_N(i) + (1 - b2) * g * g);
    const double mhat = a.m_N(i) / correct1, vhat = a.v_N(i) / correct2;
    const double w = a.w_N(i);
    a.w_N(i) = static_cast<float>(w - a.lr * (mhat / (std::sqrt(vhat) + a.eps) + a.weight_decay * w));
    if (!a.copy_N.empty()) a.copy_N.set(a.w_N(i), i);
  }
}

void run(Stream&, const SumSquares& s) {
  double sum = 0;
  for (std::int64_t i = 0; i < s.x_N.size(0); ++i) sum += static_cast<double>(s.x_N(i)) * s.x_N(i);
  *s.sum = sum;
}

}  // namespace nibble::ref
