// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/ssm/causal_conv.h"

namespace nibble::ref {
namespace {

/// x[t - K + 1 + k, c], or 0 before the sequence of token t.
template <class Args>
double tap(const Args& a, std::int64_t t, std::int64_t c, std::int64_t k) {
  const std::int64_t from = t - a.w_CK.size(1) + 1 + k;
  return from < t - t % a.seq_len ? 0.0 : double{a.x_TC.get(from, c)};
}

template <class Args>
double before_silu(const Args& a, std::int64_t t, std::int64_t c) {
  double sum = a.b_C.empty() ? 0.0 : double{a.b_C(c)};
  for (std::int64_t k = 0; k < a.w_CK.size(1); ++k) sum += double{a.w_CK(c, k)} * tap(a, t, c, k);
  return sum;
}

}  // namespace

void run(Stream&, const CausalConv& a) {
  for (std::int64_t t = 0; t < a.x_TC.size(0); ++t)
    for (std::int64_t c = 0; c < a.x_TC.size(1); ++c) {
      const double s = before_silu(a, t, c);
      a.y_TC.set(static_cast<float>(s / (1 + std::exp(-s))), t, c);
    }
}

void run(Stream&, const CausalConvBackward& a) {
  const std::int64_t tokens = a.x_TC.size(0), width = a.w_CK.size(1);
  for (std::int64_t c = 0; c < a.x_TC.size(1); ++c) {
    std::vector<double> dx(tokens, 0), dw(width, 0);
    double db = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double s = before_silu(a, t, c), sigmoid = 1 / (1 + std::exp(-s));
      const double ds = a.dy_TC.get(t, c) * sigmoid * (1 + s * (1 - sigmoid));
      db += ds;
      for (std::int64_t k = 0; k < width; ++k) {
        const std::int64_t from = t - width + 1 + k;
        if (from < t - t % a.seq_len) continue;
        dw[k] += ds * tap(a, t, c, k);
        dx[from] += ds * a.w_CK(c, k);
      }
    }
    for (std::int64_t t = 0; t < tokens; ++t) a.dx_TC.set(static_cast<float>(dx[t]), t, c);
    for (std::int64_t k = 0; k < width; ++k) a.dw_CK(c, k) += static_cast<float>(dw[k]);
    if (!a.db_C.empty()) a.db_C(c) += static_cast<float>(db);
  }
}

}  // namespace nibble::ref
