// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/gemm/matmul_blocks.h"

namespace nibble::ref {

void run(Stream&, const MatMulBlocks& g) {
  const std::int64_t K = g.a_MK.size(1);
  for (std::int64_t m = 0; m < g.a_MK.size(0); ++m)
    for (std::int64_t n = 0; n < g.b_NK.size(0); ++n) {
      float c = 0;
      for (std::int64_t first = 0, i = 0; first < K; first += kScaledBlock, ++i) {
        double sum = 0;
        for (std::int64_t k = first; k < std::min(K, first + kScaledBlock); ++k)
          sum += static_cast<double>(g.a_MK(m, k).value()) * g.b_NK(n, k).value();
        c += (g.a_scale_MI(m, i) * g.b_scale_NI(n, i)) * static_cast<float>(sum);
      }
      c *= g.factor;
      if (!g.bias_N.empty()) c += g.bias_N(n);
      if (g.beta != 0) c += g.c_MN.get(m, n);
      g.c_MN.set(c, m, n);
    }
}

}  // namespace nibble::ref
