// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "numeric/bf16.h"
#include "ops/adamw/adamw.h"
#include "quant/amax.h"

namespace nibble::ref {
namespace {

void update(const AdamW& a) {
  const StepRecord& r = *a.record;
  const double b1 = a.beta1, b2 = a.beta2;
  for (std::int64_t i = 0; i < a.w_N.size(0); ++i) {
    const double g = static_cast<double>(a.grad_N(i)) * r.grad_scale;
    a.m_N(i) = static_cast<float>(b1 * a.m_N(i) + (1 - b1) * g);
    a.v_N(i) = static_cast<float>(b2 * a.v_N(i) + (1 - b2) * g * g);
    const double mhat = a.m_N(i) * static_cast<double>(r.inverse_correction1),
                 vhat = a.v_N(i) * static_cast<double>(r.inverse_correction2);
    const double w = a.w_N(i),
                 decay = a.decays_G.empty() || a.decays_G(i / kDecayGroup) != 0 ? a.weight_decay : 0.0f;
    a.w_N(i) = static_cast<float>(w - r.lr * (mhat / (std::sqrt(vhat) + a.eps) + decay * w));
    if (!a.copy_N.empty()) a.copy_N.set(a.w_N(i), i);
  }
}

void find_amaxes(const AdamW& a) {
  const std::int64_t N = a.w_N.size(0), tensors = a.starts_S.size(0);
  for (std::int64_t s = 0; s < tensors; ++s) {
    const std::int64_t end = s + 1 < tensors ? a.starts_S(s + 1) * kDecayGroup : N;
    float amax = 0;
    for (std::int64_t i = a.starts_S(s) * kDecayGroup; i < end; ++i)
      amax = amax_keeping_nan(amax, bf16::nearest(a.w_N(i)).value());
    a.amaxes_S(s) = amax;
  }
}

}  // namespace

void run(Stream&, const GateUpdate& g) {
  StepRecord& r = *g.record;
  const double norm = std::sqrt(r.grad_squares);
  r.grad_scale = g.clip > 0 ? static_cast<float>(std::min(1.0, g.clip / (norm + 1e-6))) : 1.0f;
  if (!std::isfinite(r.loss_sum) || !std::isfinite(r.grad_squares) || r.fault >= 0) r.halted = 1;
}

void run(Stream&, const AdamW& a) {
  if (!a.record->halted) update(a);
  if (!a.amaxes_S.empty()) find_amaxes(a);
}

void run(Stream&, const SumSquares& s) {
  double sum = 0;
  for (std::int64_t i = 0; i < s.x_N.size(0); ++i) sum += static_cast<double>(s.x_N(i)) * s.x_N(i);
  *s.sum = sum;
}

void run(Stream&, const Sum& s) {
  double sum = 0;
  for (std::int64_t i = 0; i < s.x_N.size(0); ++i) sum += s.x_N(i);
  *s.sum = sum;
}

}  // namespace nibble::ref
