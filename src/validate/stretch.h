// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "telemetry/console_sink.h"
#include "train/checkpoint.h"
#include "train/run_log.h"
#include "train/setup.h"
#include "train/signals.h"

/// A stretch of a run, trained again from one of its checkpoints: under its own recipe or another, on the
/// same batches, with the same optimizer state, at the same places of the schedule.
namespace nibble {

/// A checkpoint and the run that wrote it.
struct RunPoint {
  std::filesystem::path run;         ///< folder with run.toml, metrics.jsonl, checkpoints/
  std::filesystem::path checkpoint;  ///< empty: the start values, before the first step
  CheckpointState state;
  RunConfig config;         ///< run.toml, machine options laid over it
  std::string own_backend;  ///< that the run was trained on, before those options
};

/// The folder of the run that `path` names: itself, or that of a checkpoint inside it. Throws Error{Usage}
/// when there is no run.toml.
std::filesystem::path run_of(const std::filesystem::path& path);

/// The checkpoint `path`, or the newest valid one when `path` is a run's folder. `sets` are laid over
/// run.toml. Throws Error{Usage} naming what is missing.
RunPoint find_run_point(const std::filesystem::path& path, const std::vector<std::string>& sets = {});

/// The newest valid checkpoint of `run` with at most `most_steps` steps; without one the start values.
RunPoint run_point_before(const std::filesystem::path& run, std::int64_t most_steps,
                          const std::vector<std::string>& sets = {});

/// What the identity of `point`'s checkpoint must hold for it to be of this run: the contract, or what of it
/// can be compared.
std::map<std::string, std::string> expected_identity(const RunSetup& setup, const RunPoint& point);

/// Throws Error{Usage} when data, tokenizer, evaluation set or configuration are not those that the
/// checkpoint was trained with. A point without a checkpoint has nothing to check.
void require_same_run(const RunSetup& setup, const RunPoint& point);

struct Stretch {
  std::string name;                 ///< of the arm, in logs and messages
  std::string label;                ///< what it computes in: "nvfp4", "bf16", "nvfp4, fprop in bf16"
  std::filesystem::path directory;  ///< of its logs and its last checkpoint
  RunConfig config;                 ///< that would train it, written beside its logs
  LearnerConfig learner;
  std::int64_t until = 0;                ///< steps done at its end
  std::vector<std::int64_t> eval_steps;  ///< ascending
  std::string identity;                  ///< of what resume may continue
};

/// A learner in the state of `point`: master weights, optimizer state and step count are the checkpoint's,
/// byte for byte.
std::unique_ptr<Learner> learner_at(Stream& stream, const LearnerConfig& config, const RunPoint& point);

struct StretchResult {
  RunLog log;
  std::string broken;  ///< why it ended early ("not finite at ..."), or empty
  int signal = 0;      ///< that ended it, or 0
  std::filesystem::path checkpoint;
};

/// Trains a stretch and reads its log back. A stretch that is not finite is a result.
StretchResult run_stretch(const RunSetup& setup, Stream& stream, const RunPoint& point,
                          const Stretch& stretch, bool resume, const SignalGuard& signals,
                          const std::shared_ptr<ConsoleSink>& console);

/// Another recipe for some GEMMs.
struct OtherRecipe {
  std::string recipe = "bf16";
  std::vector<std::string> gemms;  ///< fprop, dgrad, wgrad; empty: all
  bool everything() const { return gemms.empty() || gemms.size() == 3; }
};

/// The configuration under `other` from step `from` on; switches of the run at later steps are left out. From
/// step 0 on all GEMMs follow it, and the run's edits of its own recipe and its planted faults are left out.
/// Throws Error{Usage} for names that are none.
RunConfig switched_config(const RunConfig& config, std::int64_t from, const OtherRecipe& other);
/// What a learner computes under such a configuration.
LearnerConfig switched_learner(const RunSetup& setup, const RunConfig& switched, const OtherRecipe& other);
/// What a run under this configuration computes in at a step, its switches so far followed: "nvfp4", or
/// "nvfp4, fprop in bf16".
std::string label_at(const RunConfig& config, std::int64_t step);
/// The same where `other` is followed on top of it.
std::string label_under(const std::string& label, const OtherRecipe& other);

}  // namespace nibble
