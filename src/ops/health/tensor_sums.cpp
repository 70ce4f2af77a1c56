// SPDX-License-Identifier: Apache-2.0
#include "ops/health/tensor_sums.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

}  // namespace

double TensorSums::zero_share() const {
  return ratio(static_cast<double>(count - nonzero), static_cast<double>(count));
}
double TensorSums::rms() const { return std::sqrt(ratio(sum_x2, static_cast<double>(count))); }
double TensorSums::deviation() const {
  const double mean = ratio(sum, static_cast<double>(count));
  return std::sqrt(std::max(0.0, ratio(sum_x2, static_cast<double>(count)) - mean * mean));
}
double TensorSums::crest() const { return ratio(amax, rms()); }

double DifferenceSums::relative_error() const { return std::sqrt(ratio(sum_e2, sum_b2)); }
double DifferenceSums::changed_share() const {
  return ratio(static_cast<double>(changed), static_cast<double>(count));
}

void check(const MeasureTensor& m) {
  check(m.x_RC.rank() == 2 && m.out != nullptr, "measure_tensor: x must be a matrix and out must be given");
}

void check(const MeasureDifference& m) {
  check(m.a_RC.rank() == 2 && m.b_RC.rank() == 2 && m.a_RC.size(0) == m.b_RC.size(0) &&
            m.a_RC.size(1) == m.b_RC.size(1) && m.out != nullptr,
        "measure_difference: a and b must be matrices of one shape and out must be given");
}

void check(const MeasureLogits& m) {
  check(m.q_THD.rank() == 3 && m.k_TGD.rank() == 3 && m.q_THD.size(0) == m.k_TGD.size(0) &&
            m.q_THD.size(2) == m.k_TGD.size(2) && m.k_TGD.size(1) > 0 &&
            m.q_THD.size(1) % m.k_TGD.size(1) == 0 && m.q_THD.dtype() == m.k_TGD.dtype(),
        "measure_logits: q [T, H, D] and k [T, G, D] must agree in T, D and type, and G divide H");
  check(m.seq_len > 0 && m.q_THD.size(0) % m.seq_len == 0 && m.every > 0 && m.every <= m.seq_len &&
            m.out != nullptr,
        "measure_logits: whole sequences, 1 <= every <= seq_len, and out must be given");
}

}  // namespace nibble
