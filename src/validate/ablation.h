// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "telemetry/console_sink.h"
#include "train/setup.h"
#include "train/signals.h"
#include "validate/protocol.h"
#include "validate/statistics.h"

/// What each ingredient of a recipe is worth: the recipe as configured, the recipe minus one ingredient, any
/// edited recipe, and the baseline, all from the same initial bytes, on the same batches, with the same
/// stochastic-rounding streams.
///
///   DIR/protocol.json               frozen before step 0; its hash is in every arm's log
///   DIR/{baseline,full,full_aa,no_rht,...}/, DIR/seed_02/{baseline,full,...}/   as a comparison's arms
///   DIR/*/ended.json                an arm that has ended; one without it is continued
///   DIR/ablation.json               what was measured
namespace nibble {

inline constexpr const char* kBaselineArm = "baseline";
inline constexpr const char* kFullArm = "full";   ///< the recipe as the configuration has it
inline constexpr const char* kAaArm = "full_aa";  ///< the same under another stochastic-rounding key
/// The baseline from other start values on other batches: what a seed alone does to a loss. Not paired.
inline constexpr const char* kAgainArm = "baseline_again";

/// What is empty or 0 is as [ablation] of the configuration has it.
struct AblationRequest {
  /// Ingredients to leave out, one an arm: rht, sr, weights_2d, bf16_blocks. Empty there too: all that the
  /// recipe has; {"none"}: none.
  std::vector<std::string> without;
  std::vector<std::string> arms;  ///< further arms, NAME=key=value;key=value
  int seeds = 0;                  ///< 0 there too: protocol.pairs
};

struct AblationArm {
  std::string name;
  std::vector<std::string> edits;  ///< of the configuration: "precision.rht=false"
  RunConfig config;
  std::string recipe;
};

struct AblationPlan {
  std::filesystem::path directory;
  RunConfig config;
  std::vector<AblationArm> arms;      ///< baseline, full, then the others in the order asked for
  std::vector<std::string> left_out;  ///< ingredients that the recipe does not have, as sentences
  Protocol protocol;                  ///< its arms are the runs, seed by seed
};

/// Seed s trains with training.seed + s - 1 and precision.sr_seed + s - 1, in every arm; baseline_again with
/// training.seed + 1000. Edits may be of
/// [precision], [optimizer] and [faults]: what else changes the maths would break the pairing.
/// Throws Error{Usage}: for a recipe that quantises nothing, an ingredient asked for by name that it does not
/// have, a bad edit, a recipe that the model cannot run. Nothing is trained before all arms passed.
AblationPlan plan_ablation(const RunSetup& setup, const AblationRequest& request);

/// The evaluations of one arm, a curve a seed.
struct ArmCurves {
  std::string name;
  std::vector<std::vector<EvalPoint>> seeds;
  std::string broken;               ///< why it has no figures ("not finite at step 12"), or empty
  std::vector<std::string> faults;  ///< alarms of severity Fault
};

/// Mean over the seeds of (arm - reference) / reference, each a mean over the final decision window.
struct GapEstimate {
  double mean = 0;
  std::array<double, 2> ci95{};  ///< of the mean: Student t over the seeds from three on, else Noise::reach
  std::vector<double> by_seed;
  bool identical = false;  ///< every evaluation agrees in every bit; the interval is then [0, 0]
  bool separates() const { return !identical && (ci95[0] > 0 || ci95[1] < 0); }
};

struct AblationRow {
  std::string name, recipe;
  std::vector<std::string> edits;
  std::optional<double> loss;               ///< mean over the final window and the seeds, nats a token
  std::optional<GapEstimate> gap;           ///< against the baseline; not for the baseline
  std::optional<GapEstimate> against_full;  ///< not for the full recipe
  std::string broken;
  std::vector<std::string> faults;
  bool finished = true;  ///< false: some of its runs have not ended; it has no figures then
};

struct Ablation {
  Protocol protocol;
  int seeds = 0;
  Noise noise;                    ///< of one seed, from the A/A arm or the spread of the full recipe's seeds
  bool spread = false;            ///< the intervals come from the seeds' own spread, each arm's its own
  std::vector<AblationRow> rows;  ///< ascending gap against the baseline, broken arms last
  std::vector<std::string> left_out, caveats;

  const AblationRow* row(const std::string& name) const;
};

/// Pure: figures from curves, over the seeds that the baseline has. An arm without curves is not finished.
/// Throws Error for curves that do not follow the protocol, or without a baseline and a full recipe.
Ablation judge_ablation(const AblationPlan& plan, const std::vector<ArmCurves>& curves);

/// Which part of an ablation a call does.
struct AblationWork {
  bool resume = false;  ///< skip the arms that have ended, continue the one that has not
  /// As resume, and other processes may do the same in the same folder at the same time: each takes the arms
  /// that nobody has, and the one that ends the last arm judges.
  bool join = false;
  std::vector<std::string> only;  ///< train these arms alone; empty: all
  bool judge_only = false;        ///< train nothing, judge what has ended
};

struct AblationRun {
  Ablation result;
  bool finished = false;                ///< all arms have ended
  bool judged = false;                  ///< there is a result; of a part, when not finished
  std::vector<std::string> unfinished;  ///< folders of the arms that have not ended
  int signal = 0;                       ///< what ended the call; --resume continues
};

/// Trains what has not ended yet in a folder that exists (open_run_directory), judges the seeds that baseline
/// and full recipe have, writes DIR/ablation.json. `on_skip` hears of arms that an earlier call or another
/// process has. Throws  Error{Usage} when `resume` or `join` meets a folder of another protocol, or `only`
/// names no arm;
///         Error{Runtime} when arms did not start from the same bytes or saw other batches;
///         Error{NonFinite} from the baseline. Another arm that is not finite is a result.
AblationRun run_ablation(const AblationPlan& plan, Stream& stream, const AblationWork& work,
                         const SignalGuard& signals,
                         const std::function<std::shared_ptr<ConsoleSink>(const ArmSpec&)>& make_console,
                         const std::function<void(const ArmSpec&, const char* why)>& on_skip = {});

std::string ablation_text(const Ablation& a);
Json ablation_json(const Ablation& a);

}  // namespace nibble
