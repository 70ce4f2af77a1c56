// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/gemm.h"

namespace nibble {

/// The order of these three products decides the last bit [TE].
inline float alpha_of(const MatMul& g) {
  float alpha = 1.0f * (g.a_scale ? *g.a_scale : 1.0f);
  alpha = alpha * (g.b_scale ? *g.b_scale : 1.0f);
  return alpha * g.inverse_range;
}

}  // namespace nibble
