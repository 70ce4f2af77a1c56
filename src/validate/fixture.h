// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "validate/decide.h"
#include "validate/protocol.h"

/// Evaluations that were never run, for tests of the verdict alone.
namespace nibble::fixture {

inline ProtocolInput quickstart() {
  ProtocolInput in{.name = "quickstart",
                   .model = "hybrid-quickstart",
                   .baseline_recipe = "bf16",
                   .candidate_recipe = "nvfp4",
                   .parameters = 2'400'000,
                   .tokens_per_step = 2048};
  in.schedule = {.steps = 300, .warmup_steps = 30, .decay_start = 240};
  in.seed = 1, in.sr_seed = 2;
  return in;
}

/// A falling curve whose candidates sit `gap` above the baseline, the A/A arm `aa` above the candidate.
inline PairData pair_with(const Protocol& p, double gap, double aa, int number = 1, bool with_aa = true) {
  PairData out{.pair = number};
  for (const auto step : p.eval_steps) {
    const std::int64_t tokens = step * p.tokens_per_step;
    const double base = 3 + 3 / std::sqrt(static_cast<double>(step)) + 0.01 * number;
    out.baseline.push_back({step, tokens, base});
    out.candidate.push_back({step, tokens, base * (1 + gap)});
    if (with_aa) out.candidate_aa.push_back({step, tokens, base * (1 + gap) * (1 + aa)});
  }
  return out;
}

}  // namespace nibble::fixture
