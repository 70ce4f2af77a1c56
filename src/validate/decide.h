// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "validate/protocol.h"
#include "validate/statistics.h"
#include "validate/verdict.h"

namespace nibble {

/// Everything a verdict is made of.
struct Evidence {
  std::vector<PairData> pairs;
  std::optional<AbortRecord> abort;
  std::vector<AlarmEvent> alarms;  ///< of all arms
  std::string frozen_hash;         ///< the protocol hash that the runs carry; empty: the same
};

/// Judges a finished or aborted comparison.
///
/// In each window, with mu the mean over n pairs of a pair's mean gap and r the reach of one pair's one-sided
/// 95 % bound (Noise::reach: Student's t times the measured noise, never below the normal's times the floor):
///   PASS          mu + r / sqrt(n) <  limit
///   FAIL          mu - r / sqrt(n) >  limit
///   INCONCLUSIVE  otherwise, and also where the noise is only assumed
/// The whole is the worst window. Over it stand: the abort rule (ABORTED), values or a loss of a candidate
/// that are not finite (FAIL, also when that ended the arm) and an alarm of severity Fault (FAIL: the arm did
/// not compute what its recipe says). Identical arms have a gap of exactly 0, no noise, and PASS with the
/// label "identical": both computed the same, so nothing is claimed about the recipe.
/// Evaluations of one pair are not independent (their correlation is 0.8 at any lag), so more evaluations in
/// a window do not narrow the interval; more pairs do. Source: [MLPERF51]. Throws Error when evaluations are
/// missing without an abort.
Verdict decide(const Protocol& protocol, const Evidence& evidence);

/// PASS when ..., as the rule of this protocol in one sentence.
std::string rule_sentence(const Protocol& p);

}  // namespace nibble
