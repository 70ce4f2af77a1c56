// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/device.h"
#include "recipe/recipe.h"

namespace nibble {

/// Does a checkpoint compute here what it computes elsewhere? A Hugging Face folder is run forward and
/// backward on the tokens of a golden file, which holds input_ids [B, S] (int64), logits [B, S, V], loss [1]
/// (the mean cross entropy of position t against token t + 1) and grad.<parameter name in the library>.
struct VerifyReport {
  /// FP32 bounds: logits against the largest logit, loss relative, gradients relative Frobenius norm.
  static constexpr double kLogitBound = 5e-5, kLossBound = 2e-6, kGradBound = 1e-4;

  struct Gradient {
    std::string name;
    double error = 0;  ///< |ours - golden| / |golden|, Frobenius
  };
  double logit_error = 0;  ///< largest difference / largest golden logit
  double loss = 0, golden_loss = 0, loss_error = 0;
  std::vector<Gradient> gradients;  ///< worst first; empty when the file has none
  bool bounds_apply = false;        ///< the FP32 bounds hold for the recipe `fp32` alone

  double worst_gradient() const { return gradients.empty() ? 0 : gradients.front().error; }
  bool inside_bounds() const {
    return logit_error <= kLogitBound && loss_error <= kLossBound && worst_gradient() <= kGradBound;
  }
};

/// `golden` is usually model_directory/golden.safetensors. Throws Error{Runtime} naming the file and tensor
/// that is missing or does not fit.
VerifyReport verify_model(const std::filesystem::path& model_directory, const std::filesystem::path& golden,
                          Stream& stream, const Recipe& recipe);

}  // namespace nibble
