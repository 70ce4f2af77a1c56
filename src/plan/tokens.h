// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plan/workload.h"

namespace nibble {

/// Loss as a function of parameters N and tokens D: floor + a / N^alpha + b / D^beta [CHINCHILLA].
struct LossLaw {
  double floor = 1.69, a = 406.4, alpha = 0.34, b = 410.7, beta = 0.28;
  double loss(double parameters, double tokens) const;
};

/// Tokens, over `tokens`, that a run whose loss is (1 + gap) times the baseline's needs to reach the
/// baseline's loss at `tokens`. Infinite when no number of tokens makes up for the gap.
///   b / D'^beta = (L + 0) / (1 + gap) - floor - a / N^alpha
/// Against what was measured: 8B at 1.2G tokens and a gap of 0.8 % gives 1.08 (published: 1.08 to 1.12); 8B
/// at 1T and a gap of 1.0 % gives 1.53 (published for MXFP4 against NVFP4: 1.36). A long run pays more for
/// the same gap.
double token_ratio(double parameters, double tokens, double gap, const LossLaw& law = {});

struct Gap {
  double relative = 0;  ///< (candidate - baseline) / baseline of the validation loss; positive: worse
  std::string source;
};

/// What has been published for the formats that the workload's linears compute in, for a run of this length.
Gap published_gap(const Workload& work, double tokens);

/// `relative_gap` of a verdict.json of the user's own pair of runs. Throws Error when the file has none.
Gap gap_of_verdict(const std::string& path);

}  // namespace nibble
