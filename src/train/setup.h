// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/bigram.h"
#include "data/prepare.h"
#include "train/run_config.h"
#include "train/trainer.h"

namespace nibble {

/// What a configuration becomes once the disk was read: model, tokens, their order, the fixed validation
/// sequences. Made once, shared by the arms of a comparison.
class RunSetup {
 public:
  /// Prepares the data (from the cache when it is there). Throws Error{Usage} when model and data do not fit:
  /// a vocabulary smaller than the tokenizer's, a sequence longer than the data.
  explicit RunSetup(const RunConfig& config);
  RunSetup(const RunSetup&) = delete;
  RunSetup& operator=(const RunSetup&) = delete;

  const RunConfig& config() const { return config_; }
  const DecoderSpec& model() const { return model_; }
  const PreparedData& data() const { return data_; }

  /// The order of samples for a training seed: arms of one pair share it.
  SampleOrder order(std::uint64_t seed) const;
  const FixedSequences& validation() const { return validation_; }

  /// What counting pairs of tokens reaches on the validation tokens.
  NgramBaseline ngrams() const;

  LearnerConfig learner(const Recipe& recipe, std::uint64_t seed, std::uint64_t sr_seed) const;

  /// What every run of this configuration has in common: when it saves, measures and prints, the contract as
  /// its identity, and the header of its logs. The caller adds the directory, the evaluations and what is its
  /// own.
  RunPlan plan(const Learner& learner, BackendKind backend) const;

  /// Hashes of everything but the recipe that decides what a run computes, by name: configuration, data,
  /// validation sequences, tokenizer.
  std::map<std::string, std::string> contract() const;

 private:
  RunConfig config_;
  DecoderSpec model_;
  PreparedData data_;
  FixedSequences validation_;
};

/// XXH3-128 of the master weights as they are now.
std::string weights_hash(const ParamStore& params);

/// XXH3-128 over the configuration's values that change the maths, those of [precision] included or not.
std::string maths_hash(const RunConfig& config, bool with_precision);

/// The run's folder: training.runs / training.name.
std::filesystem::path run_directory(const RunConfig& config);

/// Makes `directory` ready for a run. What an earlier run left there is moved to DIRECTORY.previous-N unless
/// the run resumes; the new place of it is returned.
std::optional<std::filesystem::path> open_run_directory(const std::filesystem::path& directory, bool resume);

/// The first evaluation steps that a run without a protocol makes: 0, every `every` steps (0: 5 % of the run)
/// and the last.
std::vector<std::int64_t> plain_eval_steps(std::int64_t steps, std::int64_t every);

/// The version of this binary, written into logs.
const char* nibble_version();

}  // namespace nibble
