// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "validate/protocol.h"

namespace nibble {

/// A validation loss on the protocol's fixed sequences.
struct EvalPoint {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;
  bool operator==(const EvalPoint&) const = default;
};

/// The evaluations of the arms that share a seed. `candidate_aa` may be empty.
struct PairData {
  int pair = 1;
  std::vector<EvalPoint> baseline, candidate, candidate_aa;
};

/// r_t = (candidate - baseline) / baseline at one evaluation.
struct GapPoint {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double gap = 0;
};

/// Pairs the evaluations of two arms by step. The candidate may be shorter (stopped early) but never has a
/// step the baseline lacks. Throws Error naming the step that does not match, Error{NonFinite} for a
/// baseline loss that is not a positive number. A candidate loss that is not finite gives such a gap.
std::vector<GapPoint> paired_gaps(const std::vector<EvalPoint>& baseline,
                                  const std::vector<EvalPoint>& candidate);

/// The gaps inside a window, and their mean. Throws Error when fewer than three evaluations lie in it.
std::vector<double> gaps_in(const std::vector<GapPoint>& gaps, const DecisionWindow& window);
double mean(const std::vector<double>& values);
double rms(const std::vector<double>& values);
/// With n - 1 in the denominator; needs two values.
double sample_sd(const std::vector<double>& values);

/// Quantile of a Student t (degrees > 0) or of the normal distribution (degrees == 0).
double quantile(double probability, int degrees);

/// Noise of ONE pair in a window: the sd of its window mean if there were no difference.
struct Noise {
  double sigma = 0;  ///< the larger of `measured` and `floor`
  double measured = 0;
  double floor = 0;  ///< the least that is assumed, taken as known
  int degrees = 0;   ///< of freedom of `measured`; 0: nothing was measured
  std::optional<double> aa_rms;
  std::string source;    ///< as a sentence
  bool assumed = false;  ///< neither an A/A gap nor three pairs

  /// How far a bound that holds with this probability (> 0.5) lies from a pair's gap:
  /// max(normal quantile x floor, Student t quantile x measured).
  double reach(double probability) const;
};

/// One or two pairs: measured = 2.3 x rms of the candidate's A/A gap over the half of the run before the
/// window's end, pooled with a stored noise floor's; floor = 0.30 %. From three pairs on: the sample sd of
/// the pairs' window means. A pair's A/A gap is the candidate with another stochastic-rounding key against
/// the candidate; the factor is what such a gap understates (two 4-bit runs share their deterministic forward
/// rounding). Evaluations of one run move together, so a whole A/A arm is worth few degrees of freedom: three
/// keeps the coverage of the 95 % interval above 93 % for the autocorrelation of our own runs and for that of
/// public logs (`nibble bench --verdict`). The rms inside the window alone is worth hardly more than one.
Noise noise_of(const std::vector<PairData>& pairs, const DecisionWindow& window, const NoiseRule& rule);

/// The noise of a pair that is known while its candidate runs: what is assumed, or more by a stored floor.
double noise_before(const NoiseRule& rule);

/// How many more tokens, as a share, the worse arm needed for the same loss at the end: at the candidate's
/// last evaluation (T tokens, loss c) the baseline's running minimum, interpolated linearly in tokens,
/// reached c at t, and the result is T / t - 1; the other way round (negative) when the candidate is better.
/// Nothing when the loss lies outside the other curve. It compares points in different phases of the learning
/// rate, so it flatters neither arm only before the decay: print it as a rough figure.
std::optional<double> extra_tokens(const std::vector<EvalPoint>& baseline,
                                   const std::vector<EvalPoint>& candidate);

/// Centred moving mean over 2 * half + 1 points, shorter at the ends so that it stays centred. For plots of
/// paired differences alone: arms are never smoothed apart and subtracted.
std::vector<double> centred_mean(const std::vector<double>& values, int half);

}  // namespace nibble
