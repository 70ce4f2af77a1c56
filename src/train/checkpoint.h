// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/hf_names.h"
#include "train/learner.h"

namespace nibble {

/// step_00001000/
///   model/                 a Hugging Face folder with the FP32 master weights: config.json,
///   model.safetensors,
///                          and the tokenizer's files
///   optimizer.safetensors  Adam's two states, FP32, named m.<parameter> and v.<parameter>
///   amaxes.safetensors     where the recipe quantises under amaxes of earlier steps: of each linear
///   LINEAR.history
///                          [6, steps] and LINEAR.used [6] (layers/amax_state.h)
///   state.json             step, tokens, and the identity of the run
///   manifest.json COMPLETE (io/atomic_dir.h)
/// Everything else a step needs (learning rate, data order, random bits) is a pure function of the step and
/// the configuration, so there is no other state.
struct CheckpointState {
  std::int64_t step = 0;    ///< steps done
  std::int64_t tokens = 0;  ///< trained on
  /// What must be equal for a resume to continue the same run: hashes of the configuration that changes the
  /// maths, of the data, of the protocol.
  std::map<std::string, std::string> identity;
};

/// Writes the checkpoint of learner.steps_done() under `root`, atomically, and prunes to the last `keep`
/// (0: keeps all). `add_tokenizer` writes the tokenizer's files into the model folder. Returns its path.
/// Throws Error{Runtime}, the older checkpoints untouched, when the disk is full.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, Learner& learner,
                                      const CheckpointState& state, const HfTokenIds& ids,
                                      const std::function<void(const std::filesystem::path&)>& add_tokenizer,
                                      int keep);

/// Loads weights, states and step, after every byte of the directory was verified. Where the learner's recipe
/// has amaxes of earlier steps and the checkpoint, another recipe's, has none, they begin anew.
CheckpointState load_checkpoint(const std::filesystem::path& directory, Learner& learner);

/// state.json alone.
CheckpointState read_checkpoint_state(const std::filesystem::path& directory);

/// The entry of an identity that lists which block formats' codes the run multiplies as they are; without it,
/// none: exact BF16 operands.
inline constexpr const char* kNativeIdentity = "native";

/// Throws Error{Usage} listing what differs between the checkpoint's identity and this run's.
void check_identity(const CheckpointState& state, const std::map<std::string, std::string>& identity,
                    const std::filesystem::path& directory);

/// "step_00001000"
std::string checkpoint_name(std::int64_t step);
inline constexpr const char* kCheckpointPrefix = "step_";

}  // namespace nibble
