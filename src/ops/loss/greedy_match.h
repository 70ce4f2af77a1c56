// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// greedy[t] = 1 where the target is what greedy decoding would have said, the first index of the largest of
/// the first `vocab` logits: logits[t, v] < logits[t, target] for v < target and <= for v > target. Else 0,
/// also where the target is -1 or a logit is a NaN.
struct GreedyMatch {
  View<const float> logits_TV;
  View<const std::int32_t> targets_T;  ///< -1 or below vocab: see check_targets
  View<float> greedy_T;
  std::int64_t vocab = 0;  ///< 0: all columns
};

NIBBLE_OP(GreedyMatch, greedy_match)

}  // namespace nibble
