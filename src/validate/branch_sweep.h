// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "validate/stretch.h"

/// When to leave four bits: the run switched at several points and trained to its end, and how much of the
/// gap to a run in the other recipe from the start each switch recovers. Source: [NVFP4], appendix D.
///
///   RUN/branches/sweep/{way_000600,at_000600_all,at_000600_fprop,...,candidate}/   as any run's folder
///   RUN/branches/sweep/sweep.json
namespace nibble {

/// "at=60%,70%,800" or "60%,70%". Throws Error{Usage} for anything else.
std::vector<StepMark> sweep_marks(const std::string& text);

struct SweepRequest {
  std::vector<StepMark> at;
  std::string recipe = "bf16";
  std::vector<std::string> gemms;  ///< of the switches; empty: all
  bool forward_too = true;         ///< also switches of fprop alone
  double recover = 0.8;
  std::string baseline;  ///< folder of a run in the other recipe; empty: baseline/ beside the run
};

/// One switch, trained to the end of the run.
struct SweepArm {
  std::int64_t from = 0;
  OtherRecipe other;
  std::string name;  ///< folder below the sweep's: "at_000600_all"
};

struct SweepPlan {
  SweepRequest request;
  std::filesystem::path directory, run;
  std::filesystem::path baseline;        ///< empty: none was found
  std::vector<std::int64_t> points;      ///< steps of the switches, ascending
  std::vector<SweepArm> arms;            ///< in the order of their steps, all GEMMs before fprop alone
  bool candidate_logged = false;         ///< the run's own log reaches its end
  std::vector<std::int64_t> eval_steps;  ///< of the last part of the run, which the figures are means over
  std::vector<std::string> sets;         ///< machine options
};

/// Throws Error{Usage} for a mark outside the run, a recipe that it cannot run, a baseline of other data or
/// length. Nothing is trained before.
SweepPlan plan_sweep(const RunSetup& setup, const RunPoint& start, const SweepRequest& request,
                     const std::vector<std::string>& sets);

struct SweepRow {
  std::int64_t from = 0;
  std::string gemms, broken;
  double loss = 0;                  ///< mean over the last evaluations
  std::optional<double> gap;        ///< to the baseline, where there is one
  std::optional<double> recovered;  ///< (candidate - this) / (candidate - reference)
  double share = 0;                 ///< of the run's tokens that are trained after the switch
  double seconds = 0;
};

struct Sweep {
  std::string run, recipe, other;
  std::int64_t steps = 0, tokens_per_step = 0;
  double recover = 0;
  double candidate = 0, reference = 0;  ///< losses, means over the last evaluations
  std::string reference_name;           ///< the baseline's folder, or the earliest switch
  bool has_baseline = false;
  std::vector<std::int64_t> eval_steps;
  std::vector<SweepRow> rows;
  std::optional<std::int64_t> latest_all, latest_forward;  ///< latest switch that recovers the share
};

struct SweepRun {
  Sweep result;
  int signal = 0;
};

SweepRun run_sweep(const RunSetup& setup, const SweepPlan& plan, Stream& stream, bool resume,
                   const SignalGuard& signals,
                   const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console);

/// Pure. `logs` are those of plan.arms, in their order.
Sweep judge_sweep(const SweepPlan& plan, const RunLog& candidate, const std::optional<RunLog>& baseline,
                  const std::vector<StretchResult>& logs);

std::string sweep_text(const Sweep& s);
Json sweep_json(const Sweep& s);

}  // namespace nibble
