// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

enum class Outcome { Pass, Fail, Inconclusive, Aborted };
const char* name(Outcome o);
Outcome outcome_from(const std::string& name);
/// 0 pass, 3 fail or aborted, 4 inconclusive.
int exit_code(Outcome o);

/// One arm as the verdict sees it.
struct ArmResult {
  std::string name;
  std::string directory;
  std::string recipe;
  std::uint64_t seed = 0;
  std::uint64_t sr_seed = 0;
  std::int64_t step = 0;  ///< of the last evaluation
  std::int64_t tokens = 0;
  double loss = 0;         ///< at that evaluation, nats a token
  double window_loss = 0;  ///< mean over the deciding window
};

/// One decision window over all pairs. Gaps are shares of the baseline's loss, positive = candidate worse.
struct WindowResult {
  std::string name;
  std::int64_t after_step = 0;
  std::int64_t last_step = 0;
  int evaluations = 0;
  std::vector<double> pair_gaps;   ///< mean over the window, one a pair, in the order of the pairs
  double gap = 0;                  ///< their mean
  double sigma = 0;                ///< noise of one pair
  int degrees = 0;                 ///< of freedom of that noise; 0: assumed, not measured
  std::array<double, 2> ci95{};    ///< two-sided
  std::array<double, 2> bounds{};  ///< the one-sided bounds the rule uses
  double limit = 0;
  std::optional<double> aa_rms;       ///< of the candidate against itself with another rounding key
  std::optional<double> two_arm_gap;  ///< pair 1: mean of candidate and A/A arm against the baseline
  Outcome outcome = Outcome::Inconclusive;
};

/// Baseline and candidate on one metric of one task, over the same examples: see task_comparison.h.
struct TaskComparison {
  std::string task;
  std::string metric;
  bool higher_is_better = true;
  std::int64_t examples = 0;
  double baseline = 0, candidate = 0;
  double difference = 0;         ///< candidate - baseline
  std::array<double, 2> ci95{};  ///< over examples, not over seeds
  bool operator==(const TaskComparison&) const = default;
};

struct AbortRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double gap = 0;        ///< at the evaluation that fired; not used by non_finite
  double threshold = 0;  ///< likewise
  std::string rule;      ///< sustained_gap: the abort rule fired; non_finite: the arm's values broke
  std::string arm;
};

/// What verdict.json holds. Names of the first ten are stable; see docs and CHANGELOG before changing one.
struct Verdict {
  Outcome outcome = Outcome::Inconclusive;
  /// Of the final window; of the last common evaluation when aborted or not finite, NaN when there is none.
  double relative_gap = 0;
  std::array<double, 2> gap_ci95{};
  double noise_floor = 0;  ///< sigma of one pair
  double limit = 0;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  ArmResult baseline, candidate;  ///< of the first pair
  std::string rule;               ///< the rule as a sentence

  std::string label;   ///< identical | indistinguishable | measurably worse | measurably better | not finite
  std::string reason;  ///< why this outcome, as a sentence with the numbers
  std::string more_data;  ///< what would decide an open question; empty when decided
  std::string claim;      ///< what the outcome is about: "this seed" or the recipe
  std::string noise_source;
  int pairs = 1;
  bool inside_noise = false;  ///< zero lies inside gap_ci95
  bool identical = false;
  std::optional<ArmResult> candidate_aa;
  std::optional<double> two_arm_gap;
  std::optional<double>
      extra_tokens;  ///< share of tokens the candidate needs beyond the baseline for its loss
  std::vector<WindowResult> windows;
  std::optional<AbortRecord> abort;
  std::vector<AlarmEvent> alarms;
  std::vector<std::string> caveats;
  std::vector<TaskComparison> tasks;  ///< empty without tasks, and after an abort
  std::string protocol_hash;
  bool preregistered = true;  ///< the protocol's hash is the one both runs carry
};

/// verdict.json, indented, ending in a line feed. Numbers that are not finite are null.
std::string verdict_to_json(const Verdict& v);
/// Reads it back; throws Error naming what is wrong.
Verdict verdict_from_json(const std::string& text);

}  // namespace nibble
