// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// Rotary position embedding, half-split as in Hugging Face (pairs i and i + D/2), in place:
///   x'[i] = x[i] cos - x[i+D/2] sin,   x'[i+D/2] = x[i+D/2] cos + x[i] sin
/// with the angle of position t % seq_len. inverse = true turns back, which is the backward pass.
struct Rope {
  RealView x_THD;
  View<const float> cos_SF, sin_SF;  ///< [>= seq_len, D/2]
  std::int64_t seq_len = 0;
  bool inverse = false;
};

NIBBLE_OP(Rope, rope)

}  // namespace nibble
