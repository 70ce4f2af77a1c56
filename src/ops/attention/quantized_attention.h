// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// One operand of one of attention's products as Quantize left it: values [tokens, heads, width] of any
/// strides, so that a copy quantised along the tokens is a view of its transpose. Values are code times block
/// scale (quant/operand.h); `scale` is what Quantize wrote as such, in the backend's memory, null counting
/// as 1. Bf16 as format: plain numbers, BF16 or FP32.
struct AttentionOperand {
  ConstRealView x_THD;
  Format format = Format::Bf16;
  const float* scale = nullptr;
};

/// Causal grouped-query attention (ops/attention/attention.h) whose two products read quantised operands,
/// emulated exactly:
///   s[t,s']  = scale alpha(q, k) sum over d of q[t,h,d] k[s',g,d]
///   lse[t]   = log of the sum over s' <= t of e^s,    p[t,s'] = e^(s - lse), rounded to FP32
///   out[t]   = alpha(P, v) sum over s' of P[t,s'] v[s',g,d]
/// alpha is MatMul's, of the two operands' scales and formats. P is p quantised along the keys of its
/// sequence in the format `pv`, rounded to nearest even; Bf16: p itself. A probability is at most 1, so P has
/// no amax to be found: FP8 takes the scale 1/448, NVFP4 the tensor amax 1, which spreads the block scales
/// over all of E4M3's range as [SAGEATTENTION3] does with a scale a query; MXFP8 has none. p is normalised
/// before it is quantised, which takes the finished lse: the backward pass then makes the same P from the
/// same numbers, bit for bit [ATTN-QAT].
///
/// Sums are FP64 on every backend. ref and cpu: the same bytes. cuda: sums and exponentials differ in FP64's
/// last bits, so a probability at a tie may become the other code.
/// Memory  rows of seq_len numbers a thread or block
/// Throws  Error{Runtime} for shapes that do not fit, a format of P that is not Bf16, Fp8E4M3, Nvfp4 or
///         Mxfp8E4M3, or a seq_len that its blocks do not divide
struct QuantizedAttention {
  AttentionOperand q, k, v;
  Format pv = Format::Bf16;  ///< of P
  RealView out_THD;
  View<float> lse_HT;
  std::int64_t seq_len = 0;
  float scale = 1;
};

/// Its gradients, straight through every quantiser. p and P are those of the forward pass, recomputed:
///   dp[t,s']  = alpha(dout_p, v_p) sum over d of dout_p[t,h,d] v_p[s',g,d]
///   ds[t,s']  = p (dp - sum over keys of p dp), rounded to FP32
///   dq[t]     = scale alpha(DS, k_q) sum over s' of DS[t,s'] k_q[s',g,d]     DS: ds quantised along the keys
///   dk[s']    = scale alpha(DS, q_k) sum over heads, t of DS[t,s'] q_k[t,h,d]   along the queries
///   dv[s']    = alpha(P, dout_v) sum over heads, t of P[t,s'] dout_v[t,h,d]
/// The mean of dp is summed over the keys: out . dout is that of P and would leave a gradient in a sum that
/// has none. In the format `ds` (Bf16: ds itself) FP8 (E5M2) and NVFP4 take one tensor scale from the current
/// amax of all of ds, which costs a pass of its own. P is quantised along the keys also in dv, where a
/// product of tensor cores sums over the queries: for FP8, whose scale is one number, that is the same;
/// blocks of NVFP4 and MXFP8 such a product could not read.
///
/// Memory  ref, cpu: 8 seq_len^2 bytes a thread; cuda: 8 seq_len^2 bytes a query head of a group, and as many
///         groups at a time as fit 256 MiB
struct QuantizedAttentionBackward {
  AttentionOperand q, k;  ///< of the forward pass
  AttentionOperand dout_p, v_p, dout_v, k_q, q_k;
  Format pv = Format::Bf16;  ///< of P
  Format ds = Format::Bf16;  ///< Bf16, Fp8E5M2, Nvfp4 or Mxfp8E4M3
  View<const float> lse_HT;
  RealView dq_THD, dk_TGD, dv_TGD;  ///< overwritten
  std::int64_t seq_len = 0;
  float scale = 1;
  std::int64_t* fault = nullptr;  ///< as Quantize's, for an amax of ds that is not finite
  std::int64_t fault_id = 0;
};

NIBBLE_OP(QuantizedAttention, quantized_attention)
NIBBLE_OP(QuantizedAttentionBackward, quantized_attention_backward)

}  // namespace nibble
