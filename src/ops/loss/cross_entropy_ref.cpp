// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/loss/cross_entropy.h"

namespace nibble::ref {

void run(Stream&, const CrossEntropy& c) {
  const std::int64_t T = c.logits_TV.size(0), V = c.logits_TV.size(1), vocab = c.vocab == 0 ? V : c.vocab;
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t target = c.targets_T(t);
    double max = c.logits_TV.get(t, 0);
    for (std::int64_t v = 1; v < vocab; ++v) max = std::max<double>(max, c.logits_TV.get(t, v));
    double sum = 0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(c.logits_TV.get(t, v) - max);
    c.loss_T(t) = target < 0 ? 0.0f : static_cast<float>(std::log(sum) + max - c.logits_TV.get(t, target));
    if (c.dlogits_TV.empty()) continue;
    for (std::int64_t v = 0; v < V; ++v) {
      double d = 0;
      if (target >= 0 && v < vocab)
        d = c.grad_scale * (std::exp(c.logits_TV.get(t, v) - max) / sum - (v == target ? 1.0 : 0.0));
      c.dlogits_TV.set(static_cast<float>(d), t, v);
    }
  }
}

}  // namespace nibble::ref
