// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "validate/protocol.h"

namespace nibble {

/// How the gap of a pair moves when there is no true difference, in units of its sd: a fixed offset for the
/// run carries 75 % of the variance, the rest is AR(1) with correlation 0.28 at a distance of 8.3 % of the
/// run. Fitted to the autocorrelations 0.82, 0.78, 0.77, 0.76, 0.75 at lags 1 to 5 of ten
/// evaluations of an 8 B model. The thresholds it gives lie within 0.2 of those found by resampling the 60
/// real runs. Source: [MLPERF51].
struct NullModel {
  double offset_share = 0.75;
  double jitter_correlation = 0.28;
  double jitter_distance = 1.0 / 12;
};

/// The k for which "`consecutive` evaluations in a row above k sigma" happens with probability `false_alarm`
/// somewhere in a run without a true gap. `looks` are the evaluations' positions as shares of the run,
/// ascending. By simulation with counter-based draws, so the same looks always give the same k; rounded up to
/// 0.05, so that the last bits of a math library do not change a protocol's hash. 0 when there are too few
/// looks for the rule ever to fire.
double abort_multiplier(const std::vector<double>& looks, int consecutive, double false_alarm,
                        const NullModel& model = {});

/// Simulated null gaps, one path a row: [paths][looks], in units of sigma. Used by abort_multiplier and
/// tests.
std::vector<double> simulate_null(const std::vector<double>& looks, std::int64_t paths, std::uint64_t seed,
                                  const NullModel& model = {});

/// Follows a running candidate.
class AbortMonitor {
 public:
  explicit AbortMonitor(AbortRule rule) : rule_(rule) {}

  /// Takes the relative gap of the next evaluation and the noise known so far; true from the evaluation at
  /// which the rule fires. A gap that is not a number counts as above.
  bool push(std::int64_t step, double gap, double sigma);

  double threshold(double sigma) const;
  bool fired() const { return fired_at_ >= 0; }
  std::int64_t fired_at() const { return fired_at_; }

 private:
  AbortRule rule_;
  int above_ = 0;
  std::int64_t fired_at_ = -1;
};

}  // namespace nibble
