// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "validate/statistics.h"
#include "validate/stretch.h"
#include "validate/verdict.h"

/// The health check of a run in progress: from one checkpoint a short branch under another recipe and the run
/// itself on the same batches, and what the recipe costs at that point. Source: [NEMOTRON3ULTRA], which
/// branched its 4-bit run to BF16 at 5T, 10T and 16T tokens for 60B tokens each.
///
///   RUN/branches/step_00001000_bf16/{candidate,branch,candidate_aa}/   run.toml, metrics.jsonl, checkpoints/
///   RUN/branches/step_00001000_bf16/{branch.json,branch.html}
namespace nibble {

struct BranchRequest {
  OtherRecipe other;
  std::string tokens = "1%";  ///< budget of an arm: a share of the run, or a count ("60B", "1.5M", "500000")
  std::int64_t steps = 0;     ///< above 0: instead of `tokens`
  std::int64_t evaluations = 10;
  bool aa = false;              ///< the candidate again under another stochastic-rounding key
  std::string noise;            ///< pair_noise_from (compare.h); empty: the A/A arm's, or the published one
  std::optional<double> limit;  ///< of the relative gap; gives an outcome
};

/// "1%" of `whole`, "60B", "1.5M", "20k", "500000" as a count of tokens, rounded up. Throws Error{Usage} for
/// anything else, and for nothing at all.
std::int64_t tokens_from(const std::string& text, std::int64_t whole);

struct BranchPlan {
  BranchRequest request;
  RunPoint point;
  std::filesystem::path directory;
  std::int64_t from = 0, until = 0;      ///< steps done at its two ends
  std::vector<std::int64_t> eval_steps;  ///< `from` first, where both arms must agree in every bit
  Stretch candidate, branch;
  std::optional<Stretch> aa;
};

/// Throws Error{Usage} for a checkpoint of another run, at the end of its run, a budget under six steps, a
/// recipe that the model cannot run or that changes nothing. Nothing is trained before.
BranchPlan plan_branch(const RunSetup& setup, const RunPoint& point, const BranchRequest& request);

struct BranchRow {
  std::int64_t step = 0, tokens = 0;  ///< tokens since the checkpoint
  double branch = 0, candidate = 0;   ///< validation loss, nats a token
  std::optional<double> aa;
  double gap = 0;  ///< (candidate - branch) / branch
};

struct BranchCost {
  std::string arm, label;
  std::int64_t tokens = 0;
  double seconds = 0;  ///< of its steps; evaluations and saving apart
};

struct Branch {
  std::string run, checkpoint, recipe, label;  ///< recipe of the run; what the branch computes in
  std::int64_t from = 0, until = 0, run_steps = 0, tokens_per_step = 0, parameters = 0;
  std::vector<BranchRow> rows;
  Noise noise;     ///< of one pair's mean gap over the second half of the branch
  double gap = 0;  ///< that mean; NaN where an arm broke before three evaluations of it
  std::array<double, 2> ci95{};
  std::optional<double> limit;
  Outcome outcome = Outcome::Inconclusive;  ///< with a limit only
  std::vector<BranchCost> costs;
  std::vector<std::string> broken;  ///< arms that were not finite, as sentences
  /// Steps of the run's own log that the candidate repeated bit for bit, and the first that differs.
  std::int64_t repeated = 0;
  std::optional<std::int64_t> first_difference;
  RunLog branch_log, candidate_log, aa_log;

  bool inside_noise() const { return ci95[0] <= 0 && ci95[1] >= 0; }
};

struct BranchRun {
  Branch result;
  int signal = 0;  ///< that ended it, or 0; then there is no result and `resume` continues
};

/// Trains the arms, judges, writes branch.json. Throws Error{Runtime} when the arms did not start from the
/// same bytes or did not see the same batches.
BranchRun run_branch(const RunSetup& setup, const BranchPlan& plan, Stream& stream, bool resume,
                     const SignalGuard& signals,
                     const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console);

/// Pure: figures from the logs of the arms, and of the run itself.
Branch judge_branch(const BranchPlan& plan, std::int64_t parameters, const StretchResult& branch,
                    const StretchResult& candidate, const std::optional<StretchResult>& aa);

std::string branch_text(const Branch& b);
/// The two or three sentences that the check comes to.
std::vector<std::string> branch_sentences(const Branch& b);
Json branch_json(const Branch& b);

}  // namespace nibble
