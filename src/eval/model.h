// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "backend/device.h"
#include "eval/score.h"
#include "models/param_store.h"
#include "recipe/recipe.h"
#include "tokenizer/tokenizer.h"

namespace nibble {

/// The forward pass that a model is evaluated in, by name:
///   fp32   every tensor and product in FP32: what other libraries are compared with
///   bf16   what training evaluates in
///   w4a4   weights and activations of the linears in NVFP4, with the blocks that the recipe nvfp4 keeps in
///   BF16 w4a16  weights alone
/// Throws Error{Usage} for another name.
Recipe evaluation_recipe(std::string_view precision);

/// The Hugging Face folder meant by `path`: itself, the model of a checkpoint, or of a run's newest valid
/// checkpoint. Throws Error{Usage} naming what was looked for.
std::filesystem::path model_folder(const std::filesystem::path& path);

/// A model from a Hugging Face folder, with its tokenizer, for forward passes alone.
class EvalModel {
 public:
  /// `tokenizer`: a file or folder to take it from; empty: the model's folder. Throws Error naming what is
  /// missing or does not fit: no tokenizer.json, a vocabulary larger than the model's, a linear whose width
  /// NVFP4 blocks do not divide.
  EvalModel(const std::filesystem::path& folder, const std::filesystem::path& tokenizer, Stream& stream,
            const Recipe& recipe);

  const DecoderSpec& spec() const { return spec_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  Batching batching() const;
  TokenScores score(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T, std::int64_t length);

 private:
  DecoderSpec spec_;
  Tokenizer tokenizer_;
  Stream& stream_;
  Recipe recipe_;
  ParamStore params_;
  Decoder model_;
  Arena arena_;
};

}  // namespace nibble
