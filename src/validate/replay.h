// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "telemetry/events.h"
#include "validate/stretch.h"

/// The steps before an event once more, from the last checkpoint before it, to tell whose fault it was: the
/// recipe's, the data's or the stack's (hardware, software, or what came into the weights before).
///
/// Every arm starts from the same bytes: the run's recipe, which must repeat the log bit for bit; the same
/// steps in BF16; the same steps on another backend; and, when BF16 shows the event too, the run's recipe
/// with another batch in the event's place. What differs between two arms is where the fault is.
namespace nibble {

struct ReplayRequest {
  std::int64_t at = 0;      ///< row of metrics.jsonl, from 1; error messages count from 0, hence `after`
  std::int64_t before = 0;  ///< steps before `at` that must be replayed too
  std::int64_t after = 1;   ///< steps after it
  std::string other =
      "auto";  ///< none, ref, cpu, cuda; auto: another one that is here, if it is cheap enough
};

enum class Culprit { None, Recipe, Data, Stack };
const char* name(Culprit c);
/// 0 none, 6 recipe, 7 data, 8 stack.
int exit_code(Culprit c);

struct ReplayStep {
  std::int64_t step = 0;  ///< as a row of the log: steps done after it
  double loss = 0, grad_norm = 0;
  std::uint64_t batch_hash = 0;
};

struct ReplayBreak {
  std::int64_t step = 0;              ///< as a row of the log
  std::string layer, gemm, operand;   ///< the first quantised operand with a NaN or an infinity, or empty
  std::string gradient;               ///< the parameter whose gradient backward spoilt first, or empty
  int gradients = 0, parameters = 0;  ///< how many are spoilt, of how many
};

struct ReplayArm {
  std::string name;  ///< recipe, bf16, backend, other_batch
  std::string computes_in, backend;
  std::vector<ReplayStep> steps;
  std::optional<ReplayBreak> broken;
  std::vector<AlarmEvent> faults;  ///< of severity Fault, in its first step
};

/// What the log or the replay shows at the step.
struct ReplayEvent {
  std::string kind;  ///< "none", "non-finite", "loss spike", "gradient spike"
  std::int64_t step = 0;
  double usual = 0, value = 0;  ///< of a spike: mean over the steps before, and the value
  double z = 0;                 ///< of a spike: its distance in standard deviations
};

struct Replay {
  std::string run, checkpoint, backend;
  std::int64_t at = 0, from = 0, until = 0;
  std::string logged_version, version;
  std::vector<ReplayStep> logged;    ///< rows from `from` + 1 on that the run wrote
  std::vector<ReplayArm> arms;       ///< the run's recipe first
  std::vector<std::string> skipped;  ///< arms that were not run, with the reason
  std::vector<std::string> changed;  ///< parts of the data that are not what the checkpoint was trained with
  // Filled by judge_replay.
  ReplayEvent event;
  std::int64_t repeated = 0;                     ///< logged steps that the recipe arm repeats bit for bit
  std::optional<std::int64_t> first_difference;  ///< of loss or gradient norm
  std::optional<std::int64_t> other_batch_at;    ///< the first step whose batch is not the logged one
  double gradient_ratio = 0;                     ///< recipe over bf16, in the first step, at equal weights
  Culprit culprit = Culprit::None;
  std::vector<std::string> sentences;

  const ReplayArm* arm(const std::string& name) const;
};

/// Rows of the log before `at` that tell what is usual.
std::vector<TrainEvent> usual_rows(const RunLog& log, std::int64_t at);

/// Pure. The rules, the first that holds:
///   data    data files differ from the checkpoint's, or a batch hash from the logged one
///   stack   the recipe arm does not repeat the log; an operand or a product is not what the recipe says, or
///   the
///           gradient norm at equal weights is more than 20 % from BF16's; another backend lacks the event
///           or, at equal weights, differs in loss by more than 1 % or in gradient norm by more than 20 %
///   recipe  there is an event and BF16 lacks it
///   data    there is an event, BF16 has it too, and with another batch in its place it is gone
///   stack   there is an event, whatever the recipe and the batch
///   none    no event
/// A spike is a loss or gradient norm more than four standard deviations above up to 128 steps before it; an
/// arm has it when it shows half of its height.
void judge_replay(Replay& r, const std::vector<TrainEvent>& usual);

/// Trains every arm that is asked for and needed, and judges; `stream` is of the run's backend. Throws
/// Error{Usage} for a step outside the run.
Replay run_replay(const RunPoint& start, const ReplayRequest& request, Stream& stream);

/// The point that a request begins at: the newest valid checkpoint before at - before.
RunPoint replay_start(const std::filesystem::path& run, const ReplayRequest& request,
                      const std::vector<std::string>& sets);

std::string replay_text(const Replay& r);
Json replay_json(const Replay& r);

}  // namespace nibble
