// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/loss/cross_entropy.h"
#include "ops/loss/cross_entropy_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {

void run(Stream& stream, const CrossEntropy& c) {
  const std::int64_t T = c.logits_TV.size(0), V = c.logits_TV.size(1), vocab = c.vocab == 0 ? V : c.vocab;
  const bool gradient = !c.dlogits_TV.empty();
  for_tiles(stream, T, kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(3 * V));
    float* e = buffer.data();
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t target = c.targets_T(t);
      const float* x = read_row(c.logits_TV, t, buffer.data() + 2 * V);
      float max = 0;
      const float sum = NIBBLE_SIMD_CALL(exp_row, x, e, &max, vocab);
      // The difference first: it is small where the model is sure, and then the logarithm decides.
      c.loss_T(t) = target < 0 ? 0.0f : std::log(sum) + (max - x[target]);
      if (!gradient) continue;
      float* d = begin_row(c.dlogits_TV, t, buffer.data() + V);
      if (target < 0) {
        std::fill(d, d + V, 0.0f);
      } else {
        NIBBLE_SIMD_CALL(scaled_row, e, c.grad_scale / sum, d, vocab);
        d[target] = c.grad_scale * (e[target] / sum - 1.0f);
        std::fill(d + vocab, d + V, 0.0f);
      }
      finish_row(c.dlogits_TV, t, d);
    }
  });
}

}  // namespace nibble::cpu
