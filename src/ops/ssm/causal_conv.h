// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// Depthwise causal convolution with SiLU, inside each sequence of seq_len tokens:
///   y[t,c] = silu(b[c] + sum over k < K of w[c,k] x[t-K+1+k, c]),  x before the sequence = 0
struct CausalConv {
  ConstRealView x_TC;
  View<const float> w_CK, b_C;  ///< b may be empty
  RealView y_TC;
  std::int64_t seq_len = 0;
};

struct CausalConvBackward {
  ConstRealView x_TC;
  View<const float> w_CK, b_C;
  ConstRealView dy_TC;
  RealView dx_TC;           ///< overwritten
  View<float> dw_CK, db_C;  ///< +=; db may be empty
  std::int64_t seq_len = 0;
};

NIBBLE_OP(CausalConv, causal_conv)
NIBBLE_OP(CausalConvBackward, causal_conv_backward)

}  // namespace nibble
