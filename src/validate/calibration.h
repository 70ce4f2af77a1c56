// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validate/sequential.h"

/// How often the verdict is wrong.
///
/// Goals: simulated comparisons with the noise of real runs go through the protocol, the abort monitor and
/// decide() that judge real runs, and what comes out is counted; anyone can repeat it (`nibble bench
/// --verdict`). Non-goals: proving it for noise that is not among the worlds.
namespace nibble {

/// Loss and noise at one place of a run.
struct NoisePoint {
  double share = 0;  ///< of the run
  double loss = 0;   ///< of the baseline, nats a token
  double sigma = 0;  ///< sd of one pair's relative gap, were there no difference
};

/// The noise that simulated pairs have: size along the run, autocorrelation, and what an A/A arm sees of it.
struct NoiseWorld {
  std::string name;
  std::string source;
  std::int64_t parameters = 0;  ///< of the model, which sets the limit
  std::vector<NoisePoint> curve;
  NullModel correlation;
  /// sd of an A/A gap as a share of a pair's. 1 / 2.3 is the least seen: the rule then only just holds.
  double aa_ratio = 1 / 2.3;
  bool promised = true;  ///< false: shown, but nothing is promised for it
};

/// public: ten seeds of Llama-3.1-8B a system [MLPERF51], two unpaired seeds as a pair. own: the A/A gaps of
/// our quickstart [TINY], times the 2.3 that they may understate. stress: the size of the second with the
/// autocorrelation of the first, which no run of ours has shown.
const std::vector<NoiseWorld>& noise_worlds();

/// Shares over simulated comparisons. A comparison counts once, whatever its number of pairs.
struct CalibrationRow {
  std::string world;
  bool promised = true;
  int pairs = 0;
  int simulations = 0;
  double limit = 0;
  // No gap.
  double false_fail = 0;   ///< FAIL or ABORTED
  double false_abort = 0;  ///< over the whole run, any candidate
  double passed = 0;
  double coverage = 0;  ///< of the two-sided 95 % interval of the final window
  // A gap of twice the limit.
  double false_pass = 0;
  double true_abort = 0;         ///< first candidate
  double abort_delay = 0;        ///< median share of the run from the first counted evaluation to the abort
  double abort_delay_later = 0;  ///< median, from where the gap opens, at half the run
  // A gap of exactly the limit of each window, abort rule off: where a verdict errs most.
  double passed_at_limit = 0;
  double failed_at_limit = 0;
  // A gap that is accepted: two thirds of the limit, all along.
  double aborted_below_limit = 0;  ///< any candidate
};

/// Simulates `simulations` comparisons of `pairs` pairs (with one A/A arm when there are fewer than three),
/// each under every gap named above. Draws are counter-based: the same arguments give the same row.
CalibrationRow calibrate(const NoiseWorld& world, int pairs, int simulations, std::uint64_t seed);

/// What is promised and not met, as sentences; empty: all is met. False FAIL and false PASS at most 5 %,
/// coverage at least 93 % and from three pairs on at most 97 %, false aborts over a run at most 1 %.
std::vector<std::string> missed_promises(const CalibrationRow& row);

}  // namespace nibble
