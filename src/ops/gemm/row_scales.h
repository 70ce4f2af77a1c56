// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/gemm.h"

namespace nibble {

inline bool has_row_scales(const MatMul& g) { return !g.a_row_scale_M.empty() || !g.b_row_scale_N.empty(); }

/// MatMul's alpha of one element under scales a row.
inline float row_alpha(const MatMul& g, std::int64_t m, std::int64_t n) {
  float a = g.a_scale != nullptr ? *g.a_scale : 1.0f, b = g.b_scale != nullptr ? *g.b_scale : 1.0f;
  if (!g.a_row_scale_M.empty()) a = a * g.a_row_scale_M(m);
  if (!g.b_row_scale_N.empty()) b = b * g.b_row_scale_N(n);
  return (a * b) * g.inverse_range;
}

}  // namespace nibble
