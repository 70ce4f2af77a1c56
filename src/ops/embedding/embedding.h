// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// x[t,:] = w[id[t],:]
struct Embedding {
  View<const std::int32_t> ids_T;  ///< 0 <= id < V: see check_ids
  ConstRealView w_VD;
  RealView x_TD;
};

/// Whoever brings ids from outside calls this while they are in host memory; the ops themselves trust them.
/// Throws Error{Runtime} naming the token and its position.
void check_ids(View<const std::int32_t> ids_T, std::int64_t vocab);

/// dw[id[t],:] += dx[t,:], in the order of t for every row, so that the sum does not depend on threads.
struct EmbeddingBackward {
  View<const std::int32_t> ids_T;
  ConstRealView dx_TD;
  View<float> dw_VD;
};

NIBBLE_OP(Embedding, embedding)
NIBBLE_OP(EmbeddingBackward, embedding_backward)

}  // namespace nibble
