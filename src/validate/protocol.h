// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "telemetry/alarms.h"

/// The comparison as data, fixed before anything runs.
///
/// Goals: every number the verdict depends on is in one struct, whose text is hashed into both runs; a
/// verdict under another text is not pre-registered. One pair and several pairs are the same protocol.
/// Non-goals: running arms (run_*.cpp) and judging them (decide.h).
namespace nibble {

/// One training run of the comparison.
struct ArmSpec {
  std::string name;       ///< baseline, candidate, candidate_aa
  std::string directory;  ///< below the run's folder: "candidate", "pair_02/candidate"
  std::string recipe;
  int pair = 1;  ///< arms of one pair share initial bytes and batches
  std::uint64_t seed = 0;
  std::uint64_t sr_seed = 0;
  bool operator==(const ArmSpec&) const = default;
};

/// The evaluations with after_step < step <= last_step. A pair's statistic is its mean gap over them.
struct DecisionWindow {
  std::string name;
  std::int64_t after_step = 0;
  std::int64_t last_step = 0;
  double limit = 0;  ///< largest relative gap that is accepted
  bool operator==(const DecisionWindow&) const = default;
};

/// The run is aborted after `consecutive` evaluations in a row above max(limit, sigma_multiplier * sigma).
struct AbortRule {
  int consecutive = 3;
  double limit = 0;
  double sigma_multiplier = 0;  ///< by simulation for this run's looks: see sequential.h
  double false_alarm = 0.01;    ///< probability over the whole run that a true gap of zero is aborted
  std::int64_t first_step = 0;  ///< earlier evaluations do not count
  bool operator==(const AbortRule&) const = default;
};

struct NoiseRule {
  double assumed_sigma = 0.003;  ///< before an A/A arm exists, and the least afterwards
  double aa_factor = 2.3;        ///< two NVFP4 runs share their rounded forward: the A/A gap understates
  double aa_share = 0.5;         ///< an A/A gap counts over this share of the steps before a window's end
  int aa_degrees = 3;            ///< of freedom that one A/A arm is worth: its evaluations move together
  int spread_from_pairs = 3;     ///< from here on the pairs' own spread is the noise
  /// From a stored noise floor: rms of earlier A/A gaps by window, over that many arms; the file's hash.
  std::map<std::string, double> stored_rms;
  int stored_arms = 0;
  std::string stored_from;
  bool operator==(const NoiseRule&) const = default;
};

/// Tasks that both arms score at the run's last evaluations (task_comparison.h). They inform; the validation
/// loss decides.
struct TaskRule {
  std::vector<std::string> names;  ///< empty: none
  std::string hash;                ///< of everything that a score depends on but the model
  std::vector<std::int64_t> steps;
  int resamples = 10000;  ///< of the paired bootstrap over examples
  bool operator==(const TaskRule&) const = default;
};

struct Protocol {
  int schema = 1;
  std::string name;
  std::string model;
  std::int64_t parameters = 0;
  std::int64_t steps = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_start = 0;  ///< first step of the learning rate's decay; == steps without one
  std::string metric = "validation loss, nats a token, bf16 forward of every arm on the same sequences";
  double confidence = 0.95;  ///< of each one-sided bound
  std::vector<ArmSpec> arms;
  std::vector<std::int64_t> eval_steps;
  std::vector<std::int64_t>
      switch_steps;                     ///< where the candidate's recipe changes, each evaluated just before
  std::vector<DecisionWindow> windows;  ///< in order of time; the last one is "final"
  AbortRule abort;
  NoiseRule noise;
  AlarmRules alarms;
  TaskRule tasks;
  /// What must be equal in all arms, by name: hashes of configuration without [precision], data, initial
  /// parameters, tokenizer, evaluation set.
  std::map<std::string, std::string> contract;

  int pairs() const;
  const DecisionWindow& final_window() const;
};

/// The accepted relative gap at the end of a run: 3.5 % up to 0.3 B parameters, 2.5 % at 3 B, 1.5 % from 7 B,
/// linear in log N between. Small models lose more to four bits ([QUARTET2] 1.6-3.4 % at 30-200 M,
/// [MLPERF51] 0.6-0.9 % at 8 B).
double final_limit(std::int64_t parameters);
/// Before the decay the gap is smaller: two thirds of the final limit.
double stable_limit(double final);

struct ScheduleInput {
  std::int64_t steps = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_start = 0;            ///< == steps without a decay
  int window_evals = 5;                    ///< evaluations inside a window, at least 3
  std::vector<std::int64_t> switch_steps;  ///< first steps of another precision, see Protocol
};

/// stable = the last 10 % of the steps before the decay (absent without a decay, and when it begins with the
/// end of warm-up, as in cosine and linear schedules), final = the last 5 % of the run; each at least
/// `window_evals` steps wide. Throws a usage error for a run too short to hold both, which names the
/// training.steps that would do with the same warm-up and the same share of decay.
std::vector<DecisionWindow> decision_windows(const ScheduleInput& in, double limit);

/// Every 5 % of the run, `window_evals` evenly spaced steps in each window, its last step included, and the
/// steps done when the precision switches, so that what a switch changes is measured from there.
std::vector<std::int64_t> eval_schedule(const ScheduleInput& in, const std::vector<DecisionWindow>& windows);

struct ProtocolInput {
  std::string name, model, baseline_recipe, candidate_recipe;
  std::int64_t parameters = 0, tokens_per_step = 0;
  ScheduleInput schedule;
  std::uint64_t seed = 0, sr_seed = 0;
  int pairs = 1;
  bool aa_arm = true;
  double limit = 0;  ///< 0: from the model's size
  NoiseRule noise;
  AlarmRules alarms;
};

/// The A/A arm's stochastic-rounding seed: (sr_seed xor K) mod 2^53 with K = 0x1779B97F4A7C15. Below 2^53, so
/// that TOML, JSON and a double hold it. It is never the candidate's seed nor that of pair 2, 3, ...
/// (sr_seed + 1, ...): K's highest bit is bit 52, so for seeds below 2^53 the two differ by at least
/// 2^53 - K > 2^50, and seeds from 2^53 on are larger than any result.
std::uint64_t aa_sr_seed(std::uint64_t sr_seed);

/// Arms, seeds, evaluations, windows, limits and the abort multiplier. Pair p trains with seed + p - 1; the
/// A/A arm differs from the first candidate in the stochastic-rounding seed alone and runs right after it, so
/// that an abort in a later pair does not cost the noise.
Protocol make_protocol(const ProtocolInput& in);

/// JSON with sorted keys: the text that is frozen as protocol.json and hashed.
std::string canonical_text(const Protocol& p);
Protocol protocol_from_text(const std::string& text);
/// XXH3-128 of the canonical text, 32 hexadecimal digits.
std::string protocol_hash(const Protocol& p);

/// Sentences that are printed whenever the run is too small or too short to carry a claim about NVFP4 at
/// scale; empty for a large run. The first sentence of each stands alone. Sources: sizes of the gap
/// [QUARTET2] [MLPERF51]; ingredients that do not separate at this size [ORDERING], that do at 12 B [NVFP4].
std::vector<std::string> small_run_caveats(std::int64_t parameters, std::int64_t tokens, int pairs);

}  // namespace nibble
