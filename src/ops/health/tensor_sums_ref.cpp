// SPDX-License-Identifier: Apache-2.0
#include "ops/health/tensor_sums.h"

namespace nibble::ref {

void run(Stream&, const MeasureTensor& m) {
  TensorSums s;
  for (std::int64_t i = 0; i < m.x_RC.size(0); ++i)
    for (std::int64_t j = 0; j < m.x_RC.size(1); ++j) s.add(m.x_RC.get(i, j));
  m.out->merge(s);
}

void run(Stream&, const MeasureDifference& m) {
  DifferenceSums s;
  for (std::int64_t i = 0; i < m.a_RC.size(0); ++i)
    for (std::int64_t j = 0; j < m.a_RC.size(1); ++j) s.add(m.a_RC(i, j), m.b_RC(i, j));
  m.out->merge(s);
}

void run(Stream&, const MeasureLogits& m) {
  const std::int64_t per_group = m.q_THD.size(1) / m.k_TGD.size(1);
  LogitSums all;
  for (std::int64_t t = 0; t < m.q_THD.size(0); ++t) {
    const std::int64_t position = t % m.seq_len;
    if ((position + 1) % m.every != 0) continue;
    for (std::int64_t h = 0; h < m.q_THD.size(1); ++h) {
      double largest = 0;
      for (std::int64_t s = t - position; s <= t; ++s) {
        double dot = 0;
        for (std::int64_t d = 0; d < m.q_THD.size(2); ++d)
          dot += double{m.q_THD.get(t, h, d)} * m.k_TGD.get(s, h / per_group, d);
        const double logit = m.scale * dot;
        if (s == t - position || logit > largest) largest = logit;
      }
      all.add(static_cast<float>(largest));
    }
  }
  m.out->merge(all);
}

}  // namespace nibble::ref
