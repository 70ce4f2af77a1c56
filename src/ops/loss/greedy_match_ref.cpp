// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/greedy_match.h"

namespace nibble::ref {

void run(Stream&, const GreedyMatch& g) {
  const std::int64_t T = g.logits_TV.size(0), vocab = g.vocab == 0 ? g.logits_TV.size(1) : g.vocab;
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t target = g.targets_T(t);
    bool greedy = target >= 0;
    for (std::int64_t v = 0; greedy && v < vocab; ++v) {
      const float x = g.logits_TV(t, v), at_target = g.logits_TV(t, target);
      greedy = v < target ? x < at_target : x <= at_target;
    }
    g.greedy_T(t) = greedy ? 1.0f : 0.0f;
  }
}

}  // namespace nibble::ref
