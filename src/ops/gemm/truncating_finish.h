// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/matmul_truncating.h"
#include "ops/gemm/row_scales.h"

namespace nibble {

/// What follows the sum, in MatMul's order: its alpha, bias and beta.
inline MatMul finish_of(const MatMulTruncating& g) {
  return {.c_MN = g.c_MN,
          .a_scale = g.a_scale,
          .b_scale = g.b_scale,
          .inverse_range = g.inverse_range,
          .beta = g.beta,
          .bias_N = g.bias_N,
          .a_row_scale_M = g.a_row_scale_M,
          .b_row_scale_N = g.b_row_scale_N};
}

inline void finish(const MatMulTruncating& g, std::int64_t m, std::int64_t n, float sum) {
  float c = row_alpha(finish_of(g), m, n) * sum;
  if (!g.bias_N.empty()) c += g.bias_N(n);
  if (g.beta != 0) c += g.c_MN.get(m, n);
  g.c_MN.set(c, m, n);
}

}  // namespace nibble
