// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// x[t,:] = w[id[t],:]
struct Embedding {
  View<const std::int32_t> ids_T;  ///< 0 <= id < V, checked
  ConstRealView w_VD;
  RealView x_TD;
};

/// dw[id[t],:] += dx[t,:], in the order of t for every row, so that the sum does not depend on threads.
struct EmbeddingBackward {
  View<const std::int32_t> ids_T;
  View<const float> dx_TD;
  View<float> dw_VD;
};

NIBBLE_OP(Embedding, embedding)
NIBBLE_OP(EmbeddingBackward, embedding_backward)

}  // namespace nibble
