// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/registry.h"
#include "models/spec.h"
#include "quant/native_gemm.h"
#include "recipe/recipe.h"
#include "telemetry/alarms.h"

/// A run as its TOML file says it. Every key, its default and its meaning stand in one list
/// (run_config_keys.h), from which reading, writing, documentation and the resume check are made.
namespace nibble {

struct ModelSection {
  std::string preset;  ///< name of a preset, or empty
  std::string path;    ///< Hugging Face folder whose config.json describes the model, or empty
  ModelFields fields;  ///< laid over the preset
  friend bool operator==(const ModelSection&, const ModelSection&) = default;
};

struct DataSection {
  std::string corpus = "austen";
  std::vector<std::string> files, validation_files;
  double validation_fraction = 0.1;
  std::string tokenizer = "bpe";
  std::int64_t vocab_size = 1024;
  std::string cache = ".cache/data";
  std::string prepared;  ///< a folder of the cache, used as it is
  friend bool operator==(const DataSection&, const DataSection&) = default;
};

struct OptimizerSection {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1.0;
  friend bool operator==(const OptimizerSection&, const OptimizerSection&) = default;
};

struct ScheduleSection {
  std::string kind = "wsd";
  std::int64_t warmup_steps = 20;
  double decay_fraction = 0.2, final_ratio = 0.01;
  friend bool operator==(const ScheduleSection&, const ScheduleSection&) = default;
};

struct TrainingSection {
  std::string name = "run", runs = "runs";
  std::int64_t steps = 300, batch = 8, micro_batch = 0, sequence = 256, seed = 1;
  std::int64_t threads = 0;
  std::string backend = "cpu";
  std::string recompute = "none";
  bool record_steps = true, repeatable = true;
  std::string gemm_tuning;
  friend bool operator==(const TrainingSection&, const TrainingSection&) = default;
};

/// [[precision.override]]: RecipeOverride in words.
struct OverrideSection {
  std::string layers = "*";
  std::optional<std::string> gemm, operand, format, tile, rounding;
  std::int64_t from_step = 0;
  std::optional<std::int64_t> until_step, rotation;
  friend bool operator==(const OverrideSection&, const OverrideSection&) = default;
};

/// A step, as a count or as a share of training.steps: 820 or "82%".
struct StepMark {
  std::string text;  ///< digits, or a number with %; empty: not given
  friend bool operator==(const StepMark&, const StepMark&) = default;
};

/// The step that `mark` means in a run of `steps` steps: a share is rounded to the nearest step. Throws
/// Error{Usage} naming `key` for a text that is neither.
std::int64_t step_of(const StepMark& mark, std::int64_t steps, const char* key);

/// [[precision.switch]]: SwitchEdit in words.
struct SwitchSection {
  StepMark at;
  std::string recipe = "bf16";
  std::vector<std::string> gemms = {"fprop", "dgrad", "wgrad"};
  friend bool operator==(const SwitchSection&, const SwitchSection&) = default;
};

struct PrecisionSection {
  std::string recipe = "nvfp4";
  std::int64_t sr_seed = 1;
  bool native_fp8 = true;
  std::optional<bool> native_fp4, native_mxfp8;  ///< unset: true
  std::optional<bool> weights_2d, rht, sr, sr_exact, sr_headroom;
  std::optional<std::int64_t> rht_size, sr_bits, bf16_first, bf16_last;
  std::optional<std::string> rht_signs;
  std::vector<std::string> rht_gemms;
  std::vector<std::string> keep_bf16;
  std::optional<std::string> profile, non_finite, residual, residual_gradient, logits;
  std::optional<std::string> attention_qk, attention_pv;
  std::optional<bool> attention_backward;
  std::optional<std::string> tensor_scale, accumulate;
  std::optional<std::int64_t> amax_history, amax_margin;
  std::vector<OverrideSection> overrides;
  std::vector<SwitchSection> switches;

  /// The formats whose codes may be multiplied as they are.
  NativeGemm native() const {
    return {.fp8 = native_fp8, .fp4 = native_fp4.value_or(true), .mxfp8 = native_mxfp8.value_or(true)};
  }
  friend bool operator==(const PrecisionSection&, const PrecisionSection&) = default;
};

struct ParallelSection {
  std::int64_t data = 1;
  friend bool operator==(const ParallelSection&, const ParallelSection&) = default;
};

struct CheckpointSection {
  std::int64_t every = 0, keep = 2;
  bool resume = false;
  friend bool operator==(const CheckpointSection&, const CheckpointSection&) = default;
};

struct MetricsSection {
  std::int64_t progress = 10;
  bool tensorboard = false;
  friend bool operator==(const MetricsSection&, const MetricsSection&) = default;
};

struct TelemetrySection {
  std::int64_t every = 50;
  std::vector<std::string> layers, gemms, tensors, statistics;
  AlarmRules alarms;
  friend bool operator==(const TelemetrySection&, const TelemetrySection&) = default;
};

struct EvalSection {
  std::int64_t every = 0, sequences = 32;
  std::string tasks;  ///< folder of tasks, or empty
  std::int64_t every_steps = 0, limit = 0;
  friend bool operator==(const EvalSection&, const EvalSection&) = default;
};

struct ProtocolSection {
  std::string baseline = "bf16";
  std::int64_t pairs = 1, task_points = 3;
  std::string noise_floor;
  bool aa_arm = true, abort = true;
  double limit = 0;
  friend bool operator==(const ProtocolSection&, const ProtocolSection&) = default;
};

/// What `nibble ablate` runs beside the baseline and the recipe as configured.
struct AblationSection {
  std::vector<std::string> without, arms;
  std::int64_t seeds = 0;
  bool baseline_again = false;
  friend bool operator==(const AblationSection&, const AblationSection&) = default;
};

struct FaultsSection {
  std::int64_t inject_nan_step = -1;
  bool wgrad_sign_mismatch = false, stuck_random_bits = false, lost_micro_batches = false;
  std::string scale_binade_layers;
  friend bool operator==(const FaultsSection&, const FaultsSection&) = default;
};

struct RunConfig {
  ModelSection model;
  DataSection data;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  TrainingSection training;
  PrecisionSection precision;
  ParallelSection parallel;
  CheckpointSection checkpoint;
  MetricsSection metrics;
  TelemetrySection telemetry;
  EvalSection eval;
  ProtocolSection protocol;
  AblationSection ablation;
  FaultsSection faults;
  friend bool operator==(const RunConfig&, const RunConfig&) = default;

  std::int64_t micro_batch() const {
    return training.micro_batch > 0 ? training.micro_batch : training.batch;
  }
  std::int64_t tokens_per_step() const { return training.batch * training.sequence; }
};

/// Reads a TOML file, then lays `sets` ("training.steps=200", value in TOML syntax; what is not TOML, or
/// is TOML of another type where a string is expected, is taken as the text) over it, and checks the values.
/// Throws Error{Usage} naming file, line and key; an unknown key or section suggests the nearest.
RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& sets = {});
RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& sets = {});

/// Throws Error{Usage} for values that no run can have (a negative count, micro_batch that does not divide
/// batch, an unknown word). What depends on model or data is checked where those are made.
void check_run_config(const RunConfig& config);

/// The whole configuration as TOML, defaults included, the same text for the same configuration. Reading it
/// gives `config` again.
std::string to_toml(const RunConfig& config);

/// The values of the keys that change what is computed, as "section.key" -> TOML text. Two runs with equal
/// maps (and equal data) compute the same numbers; thread count, paths and intervals of saving are not in it.
std::map<std::string, std::string> maths_values(const RunConfig& config);

/// Throws Error{Usage} listing the keys whose values differ when `now` cannot continue what `before` began.
void check_can_resume(const RunConfig& before, const RunConfig& now);

struct ConfigKey {
  std::string section, name, type, default_text, meaning;
  bool maths = false;
  bool in_list = false;  ///< of the tables of a list, such as [[precision.override]]
};

/// Every key with type, default and meaning, in the order of the file.
std::vector<ConfigKey> config_keys();

/// The keys as a text table, for `nibble help config` and the documentation.
std::string config_reference();

/// The model of the run. `path` is read from disk.
DecoderSpec model_of(const RunConfig& config);

/// The recipe called `name` for this run: the baseline's as it is in the catalogue; the candidate's (the one
/// that [precision] names) with its edits and switches, the counts of BF16 blocks of the preset, and the
/// planted faults.
Recipe candidate_recipe(const RunConfig& config);
Recipe baseline_recipe(const RunConfig& config);

}  // namespace nibble
