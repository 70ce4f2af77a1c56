// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

namespace nibble {

/// The output head and the loss together, a chunk of tokens at a time, so that no [T, V] matrix of logits
/// exists. Never quantised. Logits are stored as ctx.logits; their gradient enters the two GEMMs in the
/// activations' type, and takes the logits' own memory where that is the same type.
class Head {
 public:
  Head(Param weight_VD, std::int64_t vocab) : weight_(weight_VD), vocab_(vocab) {}

  /// loss_T in nats for every token (0 where the target is -1). With `grad_scale` not 0 also dx_TD
  /// (overwritten; may be x) and the weight's main gradient, of grad_scale * sum of losses.
  void loss(Context& ctx, ConstRealView x_TD, View<const std::int32_t> targets_T, View<float> loss_T,
            float grad_scale, RealView dx_TD);

  /// The loss alone, and for every token 1 where its target is the most likely token, else 0
  /// (greedy_match.h).
  void score(Context& ctx, ConstRealView x_TD, View<const std::int32_t> targets_T, View<float> loss_T,
             View<float> greedy_T);

  /// logits_TV = x w^T in FP32.
  void logits(Context& ctx, ConstRealView x_TD, View<float> logits_TV);

 private:
  Param weight_;
  std::int64_t vocab_;
};

}  // namespace nibble
