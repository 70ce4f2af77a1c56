// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>

#include "quant/amax.h"

namespace nibble::ref {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

template <class F>
void each(const Layout& layout, F&& f) {
  for (std::int64_t i = 0; i < layout.size[0]; ++i)
    for (std::int64_t j = 0; j < layout.size[1]; ++j) f(i, j);
}

void find_amax(const RealView& y, float* amax) {
  if (amax == nullptr) return;
  *amax = 0;
  each(y.layout(), [&](auto t, auto f) { *amax = amax_keeping_nan(*amax, y.get(t, f)); });
}

}  // namespace

void run(Stream&, const Add& a) {
  each(a.x_TD.layout(), [&](auto t, auto d) { a.x_TD.set(a.x_TD.get(t, d) + a.y_TD.get(t, d), t, d); });
}

void run(Stream&, const Cast& c) {
  each(c.in_TD.layout(), [&](auto t, auto d) { c.out_TD.set(c.in_TD.get(t, d), t, d); });
}

void run(Stream&, const SwiGlu& s) {
  const std::int64_t F = s.y_TF.size(1);
  each(s.y_TF.layout(), [&](auto t, auto f) {
    const double g = s.gate_up_T2F.get(t, f), u = s.gate_up_T2F.get(t, F + f);
    s.y_TF.set(static_cast<float>(g * sigmoid(g) * u), t, f);
  });
  find_amax(s.y_TF, s.amax);
}

void run(Stream&, const SwiGluBackward& s) {
  const std::int64_t F = s.dy_TF.size(1);
  each(s.dy_TF.layout(), [&](auto t, auto f) {
    const double g = s.gate_up_T2F.get(t, f), u = s.gate_up_T2F.get(t, F + f), dy = s.dy_TF.get(t, f);
    const double sig = sigmoid(g);
    s.dgate_up_T2F.set(static_cast<float>(dy * u * sig * (1 + g * (1 - sig))), t, f);
    s.dgate_up_T2F.set(static_cast<float>(dy * g * sig), t, F + f);
  });
  find_amax(s.dgate_up_T2F, s.amax);
}

void run(Stream&, const SquaredRelu& s) {
  each(s.x_TF.layout(), [&](auto t, auto f) {
    const float x = std::max(s.x_TF.get(t, f), 0.0f);
    s.y_TF.set(x * x, t, f);
  });
  find_amax(s.y_TF, s.amax);
}

void run(Stream&, const SquaredReluBackward& s) {
  each(s.y_TF.layout(), [&](auto t, auto f) {
    float root = std::sqrt(s.y_TF.get(t, f));
    if (s.y_TF.dtype() == DType::BF16) root = bf16::nearest(root).value();
    s.dx_TF.set(2 * root * s.dy_TF.get(t, f), t, f);
  });
  find_amax(s.dx_TF, s.amax);
}

void run(Stream&, const ColumnSum& c) {
  for (std::int64_t n = 0; n < c.x_TN.size(1); ++n) {
    double sum = 0;
    for (std::int64_t t = 0; t < c.x_TN.size(0); ++t) sum += c.x_TN.get(t, n);
    c.sum_N(n) = static_cast<float>(c.sum_N(n) + sum);
  }
}

}  // namespace nibble::ref
