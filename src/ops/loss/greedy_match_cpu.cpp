// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/greedy_match.h"
#include "ops/rows.h"

namespace nibble::cpu {

void run(Stream& stream, const GreedyMatch& g) {
  const std::int64_t T = g.logits_TV.size(0), vocab = g.vocab == 0 ? g.logits_TV.size(1) : g.vocab;
  for_tiles(stream, T, kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t target = g.targets_T(t);
      g.greedy_T(t) = 0;
      if (target < 0) continue;
      const float* x = g.logits_TV.data() + t * g.logits_TV.stride(0);
      const float most = x[target];
      // A NaN satisfies neither comparison.
      const bool below = std::all_of(x, x + target, [most](float v) { return v < most; });
      const bool above = below && std::all_of(x + target, x + vocab, [most](float v) { return v <= most; });
      g.greedy_T(t) = above ? 1.0f : 0.0f;
    }
  });
}

}  // namespace nibble::cpu
