// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding.h"

namespace nibble::ref {

void run(Stream&, const Embedding& e) {
  for (std::int64_t t = 0; t < e.x_TD.size(0); ++t)
    for (std::int64_t d = 0; d < e.x_TD.size(1); ++d) e.x_TD.set(e.w_VD.get(e.ids_T(t), d), t, d);
}

void run(Stream&, const EmbeddingBackward& e) {
  for (std::int64_t t = 0; t < e.dx_TD.size(0); ++t)
    for (std::int64_t d = 0; d < e.dx_TD.size(1); ++d) e.dw_VD(e.ids_T(t), d) += e.dx_TD.get(t, d);
}

}  // namespace nibble::ref
