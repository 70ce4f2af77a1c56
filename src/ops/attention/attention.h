// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// Causal grouped-query attention inside each sequence of seq_len tokens:
///   out[t,h] = sum over s <= t of softmax_s(scale q[t,h] . k[s,g]) v[s,g],   g = h / (H / G)
/// Softmax in FP32. `cpu` keeps no T x T matrix: it works in tiles with a running maximum and sum.
struct Attention {
  ConstRealView q_THD, k_TGD, v_TGD;  ///< views into a fused qkv are fine: only the last axis is contiguous
  RealView out_THD;
  View<float> lse_HT;  ///< log of the sum of exponentials, kept for the backward pass
  std::int64_t seq_len = 0;
  float scale = 1;
};

/// With P the probabilities and dP[t,s] = dout[t] . v[s]:
///   dv = P^T dout,   dS[t,s] = P[t,s] (dP[t,s] - out[t] . dout[t]),   dq = scale dS k,   dk = scale dS^T q
/// The mean of dP is formed from the stored `out`: if that is BF16, so is its rounding, where the
/// probabilities concentrate on a few keys and the difference cancels.
struct AttentionBackward {
  ConstRealView q_THD, k_TGD, v_TGD, out_THD;
  View<const float> lse_HT;
  ConstRealView dout_THD;
  RealView dq_THD, dk_TGD, dv_TGD;  ///< overwritten
  std::int64_t seq_len = 0;
  bool repeatable = true;  ///< false: cuda may add in an order that differs from run to run, which is faster
  float scale = 1;
};

NIBBLE_OP(Attention, attention)
NIBBLE_OP(AttentionBackward, attention_backward)

}  // namespace nibble
