// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

namespace nibble {

/// Attention in the formats of a recipe: quantises what lies in memory, each product's operands along its
/// summed axis, and hands it to ops/attention/quantized_attention.h. Tensor scales (FP8, NVFP4) come from the
/// current amax of all heads of the micro-batch; everything is rounded to nearest even; gradients in FP8 are
/// E5M2. An operand that holds a NaN or an infinity is noted in ctx.record, or without one
///   Throws  Error{NonFinite} with step, the qkv linear and the operand
struct AttentionInFormats {
  AttentionRecipe recipe;
  const LinearInfo& qkv;           ///< for faults
  ConstRealView q_TC, k_TC, v_TC;  ///< [tokens, heads * head_dim]
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

void attention_in_formats(Context& ctx, const AttentionInFormats& a, RealView out_TC, View<float> lse_HT);

/// Overwrites the gradients.
void attention_in_formats_backward(Context& ctx, const AttentionInFormats& a, View<const float> lse_HT,
                                   ConstRealView dout_TC, RealView dq_TC, RealView dk_TC, RealView dv_TC);

}  // namespace nibble
