// SPDX-License-Identifier: Apache-2.0
#include "train/learner.h"

#include <cmath>

#include "base/error.h"
#include "models/parameters.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

DType storage(Format format) { return format == Format::Fp32 ? DType::F32 : DType::BF16; }

DType compute_type(const Recipe& recipe) { return storage(recipe.base); }

std::vector<ParamPiece> pieces_of(const ParamStore& params) {
  std::vector<ParamPiece> pieces;
  for (const ParamStore::Entry& e : params.entries()) {
    ParamPiece p{.w = params.master(e),
                 .m = params.adam_m(e),
                 .v = params.adam_v(e),
                 .grad = params.grad(e),
                 .copy = {},
                 .decay = e.info.decay};
    if (e.has_copy) p.copy = params.copy(e);
    pieces.push_back(p);
  }
  return pieces;
}

const LearnerConfig& checked(const LearnerConfig& c) {
  check_spec(c.model);
  check_usage(c.sequence > 0 && c.sequence <= c.model.max_seq,
              "training.sequence = {}: the model takes 1 to {} tokens; raise model.max_sequence or lower it",
              c.sequence, c.model.max_seq);
  check_usage(c.micro_batch > 0 && c.batch > 0 && c.batch % c.micro_batch == 0,
              "training.micro_batch = {} does not divide training.batch = {}", c.micro_batch, c.batch);
  check_recipe(c.recipe, linears(c.model), c.micro_batch * c.sequence);
  return c;
}

}  // namespace

Learner::Learner(Stream& stream, const LearnerConfig& config)
    : stream_(stream),
      config_(checked(config)),
      evaluation_recipe_(find_recipe("bf16")),
      params_(stream.device(), parameters(config.model)),
      model_(stream.device(), config.model, params_, compute_type(config.recipe)),
      pieces_(pieces_of(params_)),
      arena_(stream.device()) {
  if (compute_type(config_.recipe) == DType::F32)
    bf16_model_ = std::make_unique<Decoder>(stream.device(), config_.model, params_, DType::BF16);
  model_.inject_nan_at(config_.inject_nan_step);
  params_.initialise(config_.seed);
  params_.refresh_copies(stream_);
}

Context Learner::context(std::int64_t first_token) {
  return {.stream = stream_,
          .arena = arena_,
          .recipe = config_.recipe,
          .activation = compute_type(config_.recipe),
          .residual = storage(config_.recipe.residual),
          .seq_len = config_.sequence,
          .step = steps_done_,
          .first_token = first_token,
          .sr_seed = config_.sr_seed,
          .weights_version = weights_version_};
}

double Learner::evaluate(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T) {
  const std::int64_t tokens = ids_T.size(0), micro = config_.micro_batch * config_.sequence;
  check(tokens > 0 && tokens % config_.sequence == 0, "evaluation takes whole sequences, got {} tokens",
        tokens);
  Decoder& model = bf16_model_ ? *bf16_model_ : model_;
  const ArenaScope scope(arena_);
  const View<float> loss_T = arena_.take<float>(tokens);
  for (std::int64_t begin = 0; begin < tokens; begin += micro) {
    const std::int64_t count = std::min(micro, tokens - begin);
    Context ctx{.stream = stream_,
                .arena = arena_,
                .recipe = evaluation_recipe_,
                .activation = DType::BF16,
                .residual = storage(evaluation_recipe_.residual),
                .seq_len = config_.sequence,
                .weights_version = weights_version_,
                .training = false};
    model.evaluate(ctx, ids_T.rows(begin, count), targets_T.rows(begin, count), loss_T.rows(begin, count));
  }
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) sum += loss_T(t);
  return sum / static_cast<double>(tokens);
}

void Learner::restored(std::int64_t steps_done) {
  steps_done_ = steps_done;
  ++weights_version_;
  params_.refresh_copies(stream_);
}

void Learner::require_finite(double value, const char* what) const {
  if (!std::isfinite(value))
    throw Error(
        ErrorKind::NonFinite,
        fmt::format("step {}: {} is {} under the recipe {}; the weights are those of before the step. "
                    "Resume from the last checkpoint with a lower learning rate, or in bf16 to see "
                    "whether the recipe is at fault",
                    steps_done_, what, value, config_.recipe.name));
}

}  // namespace nibble
