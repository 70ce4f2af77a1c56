// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "telemetry/alarms.h"
#include "telemetry/events.h"
#include "telemetry/statistics.h"
#include "tokenizer/tokenizer.h"
#include "train/learner.h"
#include "train/signals.h"

namespace nibble {

/// What a run reads: shared by the arms of a comparison, which is what makes their batches equal.
struct RunData {
  const SampleOrder& order;
  const FixedSequences& validation;
  const Tokenizer& tokenizer;
};

/// One training run apart from what it computes: where it lives and when it looks, saves and measures.
struct RunPlan {
  std::filesystem::path directory;       ///< metrics.jsonl, telemetry.jsonl, checkpoints/
  std::vector<std::int64_t> eval_steps;  ///< after these many steps; ascending
  std::vector<std::int64_t> task_steps;  ///< after these many steps `evaluate_tasks` is called; ascending
  /// Evaluates tasks on the learner as it stands and returns what the logs are to say.
  std::function<std::vector<TaskEvent>(Learner&)> evaluate_tasks;
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at the end only
  int checkpoint_keep = 2;            ///< 0: all
  std::int64_t telemetry_every = 0;   ///< steps; 0: never. The first step is always measured then
  TelemetrySelection telemetry;       ///< what is measured then
  bool tensorboard = false;           ///< also tensorboard/, event files
  AlarmRules alarms;
  HeaderEvent header;                           ///< first line of the logs
  std::map<std::string, std::string> identity;  ///< see CheckpointState
  bool resume = false;     ///< continue from the newest valid checkpoint, if there is one
  std::int64_t until = 0;  ///< steps done at which the run ends; 0: those of the learner's schedule
};

enum class RunEnd { Finished, Signal, Stopped };

struct RunResult {
  RunEnd end = RunEnd::Finished;
  int signal = 0;
  std::int64_t steps = 0;
  std::vector<EvalEvent> evaluations;  ///< from step 0 on, those before a resume included
  std::vector<AlarmEvent> alarms;      ///< likewise
  std::filesystem::path checkpoint;    ///< the last one
};

/// Trains `learner` from the steps it has done to the end of its schedule (or plan.until), or until a signal
/// arrives or `stop` says so after an evaluation. Writes the logs, sends the same events to `console`, saves
/// checkpoints. A resumed run drops the log lines after its checkpoint and writes them again, bit for bit.
/// Throws  Error{NonFinite} naming the last good checkpoint;  Error{Runtime} for a full disk, the last
/// checkpoint
///         untouched;  Error{Usage} when the directory belongs to another configuration
RunResult run_training(Learner& learner, const RunData& data, const RunPlan& plan,
                       const std::shared_ptr<Sink>& console, const SignalGuard& signals,
                       const std::function<bool(const EvalEvent&)>& stop = {});

}  // namespace nibble
