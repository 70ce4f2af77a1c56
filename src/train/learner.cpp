// SPDX-License-Identifier: Apache-2.0
#include "train/learner.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "layers/linear.h"
#include "models/parameters.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/native.h"
#include "ops/loss/cross_entropy.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

DType compute_type(const Recipe& recipe) { return storage_of(recipe.base); }

FlatParams flat(const ParamStore& params) {
  return {.w = params.all_master(),
          .m = params.all_m(),
          .v = params.all_v(),
          .grad = params.all_grads(),
          .copy = params.all_copies(),
          .decays = params.decays(),
          .starts = params.starts(),
          .amaxes = params.all_amaxes()};
}

const LearnerConfig& checked(const LearnerConfig& c) {
  check_spec(c.model);
  check_usage(c.sequence > 0 && c.sequence <= c.model.max_seq,
              "training.sequence = {}: the model takes 1 to {} tokens; raise model.max_sequence or lower it",
              c.sequence, c.model.max_seq);
  check_usage(c.micro_batch > 0 && c.batch > 0 && c.batch % c.micro_batch == 0,
              "training.micro_batch = {} does not divide training.batch = {}", c.micro_batch, c.batch);
  check_recipe(c.recipe, linears(c.model), c.micro_batch * c.sequence);
  check_attention(c.recipe, c.model, c.sequence);
  return c;
}

/// The operand that a step's fault names, in words and as an error that carries it.
NonFiniteStep faulty_operand(const StepRecord& r, const std::vector<LinearInfo>& all) {
  std::string layer, gemm, operand;
  for (const LinearInfo& l : all)
    for (const Gemm g : kGemms)
      for (const Operand o : kOperands)
        if (fault_id(l, g, o) == r.fault) layer = l.name, gemm = name(g), operand = operand_name(g, o);
  return {fault_sentence(r.step, all, r.fault, "a NaN or an infinity"), r.step, layer, gemm, operand};
}

}  // namespace

Learner::Learner(Stream& stream, const LearnerConfig& config)
    : stream_(stream),
      config_(checked(config)),
      evaluation_recipe_(find_recipe("bf16")),
      linears_(linears(config.model)),
      params_(stream.device(), parameters(config.model), quantizes(config.recipe)),
      model_(stream.device(), config.model, params_, compute_type(config.recipe)),
      flat_(flat(params_)),
      arena_(stream.device()),
      record_(stream.device(), sizeof(StepRecord)) {
  if (compute_type(config_.recipe) == DType::F32)
    bf16_model_ = std::make_unique<Decoder>(stream.device(), config_.model, params_, DType::BF16);
  const std::size_t token_bytes =
      2 * static_cast<std::size_t>(config_.batch * config_.sequence) * sizeof(std::int32_t);
  tokens_ = Buffer(device(), token_bytes);
  for (Slot& s : slots_)
    s = {HostBuffer(device(), sizeof(StepRecord)), HostBuffer(device(), token_bytes),
         HostBuffer(device(), sizeof(StepRecord))};
  if (needs_amax_state(config_.recipe))
    amaxes_ = std::make_unique<AmaxState>(device(), std::ssize(linears_), history_of(config_.recipe),
                                          config_.recipe.amax_margin);
  native_ = config_.decode_codes ? config_.native : common(config_.native, native_gemm(device()));
  model_.inject_nan_at(config_.inject_nan_step);
  params_.initialise(config_.seed);
  params_.refresh_copies(stream_);
}

View<const std::int32_t> Learner::ids() const {
  return View<const std::int32_t>(tokens_.as<std::int32_t>(), config_.batch * config_.sequence);
}

View<const std::int32_t> Learner::targets() const {
  const std::int64_t tokens = config_.batch * config_.sequence;
  return View<const std::int32_t>(tokens_.as<std::int32_t>() + tokens, tokens);
}

Context Learner::context(std::int64_t first_token) {
  return {.stream = stream_,
          .arena = arena_,
          .recipe = config_.recipe,
          .activation = compute_type(config_.recipe),
          .residual = storage_of(config_.recipe.residual),
          .residual_gradient = storage_of(config_.recipe.residual_gradient),
          .logits = storage_of(config_.recipe.logits),
          .seq_len = config_.sequence,
          .step = steps_begun_,
          .first_token = first_token,
          .sr_seed = config_.sr_seed,
          .weights_version = weights_version_,
          .recompute = config_.recompute,
          .repeatable = config_.repeatable,
          .native = native_,
          .record = record(),
          .amaxes = amaxes_.get()};
}

void Learner::begin(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                    QuantObserver* observer) {
  const std::int64_t tokens = config_.batch * config_.sequence;
  check(ids_T.size(0) == tokens && targets_T.size(0) == tokens, "a step takes {} tokens, got {}", tokens,
        ids_T.size(0));
  check(in_flight_ < kInFlight, "{} steps are in flight; finish one first", in_flight_);
  check_ids(ids_T, config_.model.vocab);
  check_targets(targets_T, config_.model.vocab);

  Slot& slot = slots_[static_cast<std::size_t>(steps_begun_ % kInFlight)];
  *slot.head.as<StepRecord>() = step_head(config_.optimizer, steps_begun_, config_.schedule.at(steps_begun_));
  std::copy_n(ids_T.data(), tokens, slot.tokens.as<std::int32_t>());
  std::copy_n(targets_T.data(), tokens, slot.tokens.as<std::int32_t>() + tokens);
  device().copy_from_host(record(), slot.head.as<StepRecord>(), kStepRecordHead);
  device().copy_from_host(tokens_.data(), slot.tokens.as<std::int32_t>(), tokens_.bytes());
  issue(observer);
  if (observer != nullptr) observer->issued();
  device().send_to_host(slot.result.as<StepRecord>(), record(), sizeof(StepRecord));
  slot.done = device().mark();
  ++steps_begun_;
  ++weights_version_;
  ++in_flight_;
}

/// Computes the step, or issues its record again. The first step of a plan finds the memory and the library
/// plans that it needs, which may not be made while recording, so it is never recorded; nor is a measured
/// step or one of a planted fault, which look different every time.
void Learner::issue(QuantObserver* observer) {
  std::vector<ResolvedLinear> plan = plan_of_step(config_.recipe, linears_, steps_begun_);
  if (!warm_ || plan != plan_) {
    recording_.reset();
    compute(observer);
    arena_.settle();
    stream_.scratch().settle();
    plan_ = std::move(plan);
    warm_ = true;
    return;
  }
  if (observer != nullptr || !config_.record_steps || config_.inject_nan_step >= 0) {
    compute(observer);
    return;
  }
  if (!recording_) recording_ = device().record([&] { compute(nullptr); });
  if (recording_)
    recording_->replay();
  else
    compute(nullptr);
}

StepResult Learner::finish() {
  check(in_flight_ > 0, "no step is in flight");
  const Slot& slot = slots_[static_cast<std::size_t>(steps_done() % kInFlight)];
  device().wait(slot.done);
  const StepRecord r = *slot.result.as<StepRecord>();
  require_sound(r);
  --in_flight_;
  return {.loss = r.loss_sum / static_cast<double>(config_.batch * config_.sequence),
          .grad_norm = std::sqrt(r.grad_squares),
          .lr = config_.schedule.at(r.step)};
}

Context Learner::evaluation_context(std::int64_t length) {
  return {.stream = stream_,
          .arena = arena_,
          .recipe = evaluation_recipe_,
          .activation = DType::BF16,
          .residual = storage_of(evaluation_recipe_.residual),
          .seq_len = length,
          .weights_version = weights_version_,
          .training = false};
}

double Learner::evaluate(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T) {
  const std::int64_t tokens = ids_T.size(0), micro = config_.micro_batch * config_.sequence;
  check(tokens > 0 && tokens % config_.sequence == 0, "evaluation takes whole sequences, got {} tokens",
        tokens);
  check(in_flight_ == 0, "{} steps are in flight; finish them before an evaluation", in_flight_);
  check_ids(ids_T, config_.model.vocab);
  check_targets(targets_T, config_.model.vocab);
  Decoder& model = evaluation_model();
  const ArenaScope scope(arena_);
  const View<float> loss_T = arena_.take<float>(tokens);
  const View<double> sum_1 = arena_.take<double>(1);
  const View<std::int32_t> ids = arena_.take<std::int32_t>(micro), targets = arena_.take<std::int32_t>(micro);
  for (std::int64_t begin = 0; begin < tokens; begin += micro) {
    const std::int64_t count = std::min(micro, tokens - begin);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
    device().copy_from_host(ids.data(), ids_T.data() + begin, bytes);
    device().copy_from_host(targets.data(), targets_T.data() + begin, bytes);
    Context ctx = evaluation_context(config_.sequence);
    model.evaluate(ctx, ids.rows(0, count), targets.rows(0, count), loss_T.rows(begin, count));
  }
  sum(stream_, {.x_N = loss_T, .sum = sum_1.data()});
  return read(device(), sum_1.data()) / static_cast<double>(tokens);
}

TokenScores Learner::score(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                           std::int64_t length) {
  check(in_flight_ == 0, "{} steps are in flight; finish them before an evaluation", in_flight_);
  check(length > 0 && length <= config_.model.max_seq && ids_T.size(0) % length == 0,
        "{} tokens are not whole sequences of {}", ids_T.size(0), length);
  Context ctx = evaluation_context(length);
  return scores_of(evaluation_model(), ctx, ids_T, targets_T);
}

void Learner::restored(std::int64_t steps_done) {
  check(in_flight_ == 0, "{} steps are in flight; finish them before loading weights", in_flight_);
  steps_begun_ = steps_done;
  ++weights_version_;
  params_.refresh_copies(stream_);
}

void Learner::require_sound(const StepRecord& r) {
  if (r.halted == 0) return;
  device().synchronize();
  // The steps begun after it changed nothing: it is the next one again.
  steps_begun_ = r.step;
  in_flight_ = 0;
  device().zero(&record()->halted, sizeof r.halted);
  if (r.fault >= 0) throw faulty_operand(r, linears_);
  const bool loss = !std::isfinite(r.loss_sum);
  throw NonFiniteStep(
      fmt::format("step {}: {} is {} under the recipe {}; the weights are those of before the step. "
                  "Resume from the last checkpoint with a lower learning rate, or in bf16 to see "
                  "whether the recipe is at fault",
                  r.step, loss ? "the loss" : "the gradient norm",
                  loss ? r.loss_sum : std::sqrt(r.grad_squares), config_.recipe.name),
      r.step, "", "", "");
}

}  // namespace nibble
