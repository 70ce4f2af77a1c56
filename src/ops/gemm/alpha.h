// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "ops/gemm/gemm.h"

namespace nibble {

/// The order of these three products decides the last bit [TE]. Null counts as 1.
NIBBLE_HD float alpha_of(const float* a_scale, const float* b_scale, float inverse_range) {
  float alpha = 1.0f * (a_scale != nullptr ? *a_scale : 1.0f);
  alpha = alpha * (b_scale != nullptr ? *b_scale : 1.0f);
  return alpha * inverse_range;
}

inline float alpha_of(const MatMul& g) { return alpha_of(g.a_scale, g.b_scale, g.inverse_range); }

}  // namespace nibble
