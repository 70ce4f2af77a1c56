// SPDX-License-Identifier: Apache-2.0
#include "eval/model.h"

#include "base/error.h"
#include "base/nearest.h"
#include "io/atomic_dir.h"
#include "models/hf_checkpoint.h"
#include "models/parameters.h"
#include "recipe/resolve.h"
#include "train/checkpoint.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Tokenizer tokenizer_for(const fs::path& folder, const fs::path& given) {
  const fs::path path = given.empty() ? folder : given;
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  check_usage(
      fs::is_regular_file(file),
      "{} is not there: tasks are text, and only the tokenizer that the model was trained with gives it "
      "the right tokens. Put it there, or name it with --tokenizer",
      file.string());
  return Tokenizer::load(file);
}

const DecoderSpec& checked(const DecoderSpec& spec, const Tokenizer& tokenizer, const Recipe& recipe) {
  check_usage(tokenizer.vocab_size() <= spec.vocab,
              "the tokenizer {} has {} tokens, the model's vocabulary {}: they do not belong together",
              tokenizer.name(), tokenizer.vocab_size(), spec.vocab);
  // T is no reduction axis of a forward pass, so any number of tokens will do.
  check_recipe(recipe, linears(spec), 16);
  return spec;
}

}  // namespace

Recipe evaluation_recipe(std::string_view precision) {
  if (precision == "fp32" || precision == "bf16") return find_recipe(precision);
  check_usage(
      precision == "w4a4" || precision == "w4a16",
      "there is no precision \"{}\"{} It is fp32, bf16, w4a4 (NVFP4 weights and activations) or w4a16 "
      "(weights alone)",
      precision, did_you_mean(precision, {"fp32", "bf16", "w4a4", "w4a16"}, 1));
  Recipe recipe = find_recipe("nvfp4");
  // Only the forward pass is computed; what its operands are is all that is left of the recipe.
  recipe.dgrad = recipe.wgrad = find_recipe("bf16").fprop;
  if (precision == "w4a16") recipe.fprop.a = find_recipe("bf16").fprop.a;
  recipe.name = precision;
  return recipe;
}

fs::path model_folder(const fs::path& path) {
  check_usage(fs::exists(path), "{} does not exist", path.string());
  for (const fs::path& folder : {path, path / "model"})
    if (fs::is_regular_file(folder / "config.json")) return folder;
  const LatestComplete latest = find_latest_complete(path / "checkpoints", kCheckpointPrefix);
  check_usage(
      latest.directory.has_value(),
      "{} is no model: it has neither a config.json, nor a model/config.json as a checkpoint has, nor a "
      "valid checkpoint under checkpoints/",
      path.string());
  return *latest.directory / "model";
}

EvalModel::EvalModel(const fs::path& folder, const fs::path& tokenizer, Stream& stream, const Recipe& recipe)
    : spec_(read_hf_spec(folder)),
      tokenizer_(tokenizer_for(folder, tokenizer)),
      stream_(stream),
      recipe_(recipe),
      params_(stream.device(), parameters(checked(spec_, tokenizer_, recipe))),
      model_(stream.device(), spec_, params_, storage_of(recipe.base)),
      arena_(stream.device()) {
  load_hf_weights(Safetensors::open_model(folder), spec_, params_);
  params_.refresh_copies(stream_);
}

Batching EvalModel::batching() const {
  return {.max_length = spec_.max_seq,
          .tokens = stream_.kind() == BackendKind::Cuda ? 16384 : 2048,
          .alone = is_quantized(recipe_.fprop.a.format)};
}

TokenScores EvalModel::score(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                             std::int64_t length) {
  Context ctx{.stream = stream_,
              .arena = arena_,
              .recipe = recipe_,
              .activation = storage_of(recipe_.base),
              .residual = storage_of(recipe_.residual),
              .seq_len = length,
              .training = false};
  return scores_of(model_, ctx, ids_T, targets_T);
}

}  // namespace nibble
