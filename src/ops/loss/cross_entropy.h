// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// loss[t] = logsumexp_v(logits[t,:]) - logits[t, target[t]], in nats; 0 where target is -1 (ignored).
/// With dlogits: dlogits[t,v] = grad_scale * (softmax(logits[t,:])[v] - [v == target[t]]), 0 for ignored
/// tokens. Only the first `vocab` columns take part: padding columns get gradient 0. FP32 inside. The caller
/// (the head layer) hands over a chunk of tokens at a time, so no full logits exist.
struct CrossEntropy {
  ConstRealView logits_TV;
  View<const std::int32_t> targets_T;  ///< -1 or below vocab: see check_targets
  View<float> loss_T;
  RealView dlogits_TV{};  ///< optional; may be the logits' own memory when of their type
  float grad_scale = 1;
  std::int64_t vocab = 0;  ///< 0: all columns
};

/// Whoever brings targets from outside calls this while they are in host memory; the op itself trusts them.
/// Throws Error{Runtime} naming the target and its position.
void check_targets(View<const std::int32_t> targets_T, std::int64_t vocab);

NIBBLE_OP(CrossEntropy, cross_entropy)

}  // namespace nibble
