// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope.h"

namespace nibble::ref {

void run(Stream&, const Rope& r) {
  const std::int64_t half = r.x_THD.size(2) / 2;
  for (std::int64_t t = 0; t < r.x_THD.size(0); ++t)
    for (std::int64_t h = 0; h < r.x_THD.size(1); ++h)
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = r.cos_SF(t % r.seq_len, i);
        const double s = r.inverse ? -r.sin_SF(t % r.seq_len, i) : r.sin_SF(t % r.seq_len, i);
        const double x = r.x_THD.get(t, h, i), y = r.x_THD.get(t, h, i + half);
        r.x_THD.set(static_cast<float>(x * c - y * s), t, h, i);
        r.x_THD.set(static_cast<float>(y * c + x * s), t, h, i + half);
      }
}

}  // namespace nibble::ref
