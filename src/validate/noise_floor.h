// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "validate/protocol.h"
#include "validate/statistics.h"

namespace nibble {

/// What an A/A arm measured, for later runs of the same experiment under other seeds: noise_floor.json in the
/// run's folder. It holds the arms of the run and those of the noise floor that the run itself was given, so
/// that a floor grows from run to run.
struct NoiseFloor {
  int schema = 1;
  std::string recipe;
  std::int64_t parameters = 0;
  std::string validation;  ///< hash of the evaluation set
  /// Every key of the configuration that changes what is computed, but the seeds and the backend.
  std::map<std::string, std::string> settings;
  std::map<std::string, double> aa_rms;  ///< of the A/A gap by window, as Noise has it, over all arms
  int arms = 0;
  std::vector<std::string> protocols;  ///< hashes of the runs behind it, one an arm
  std::string file;                    ///< where it was read from, for messages; not written
};

/// The settings among a configuration's values: those that another seed of the same experiment shares.
std::map<std::string, std::string> noise_settings(std::map<std::string, std::string> maths_values);

std::string noise_floor_to_json(const NoiseFloor& f);
/// Throws Error{Usage} naming the file when it cannot be read or is none.
NoiseFloor read_noise_floor(const std::filesystem::path& path);

/// One property of an experiment that a floor was not measured under.
struct FloorDifference {
  std::string what, there, here;  ///< "training.steps", "300", "60"
  std::string text() const;       ///< "training.steps: 300 there, 60 here"
};
/// In what `floor` is of another experiment than `now` describes (its figures are not read): another size,
/// recipe, evaluation set or setting has another noise. Empty: it is the same.
std::vector<FloorDifference> floor_differences(const NoiseFloor& floor, const NoiseFloor& now);

/// Throws Error{Usage} where there is a difference; the message lists them.
void require_same_experiment(const NoiseFloor& floor, const NoiseFloor& now);

/// One sentence about a floor that the configuration names and that is not used for these differences;
/// `aa_arm`: the run measures its noise itself.
std::string unused_floor_sentence(const std::vector<FloorDifference>& differences, bool aa_arm);

/// The rule of a protocol that may use `floor`.
NoiseRule with_stored_floor(NoiseRule rule, const NoiseFloor& floor);

/// `experiment` with the figures of a finished run: the A/A arms of `pairs`, pooled with the floor that the
/// protocol was given (`given`; null: none). Nothing when no A/A arm reached the end of every window.
std::optional<NoiseFloor> measured_floor(NoiseFloor experiment, const Protocol& protocol,
                                         const std::vector<PairData>& pairs, const NoiseFloor* given);

}  // namespace nibble
