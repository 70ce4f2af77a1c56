// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <limits>
#include <map>

#include "layers/attention.h"
#include "layers/mamba2.h"
#include "layers/mlp.h"
#include "models/parameters.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/health/tensor_sums.h"
#include "ops/loss/cross_entropy.h"

namespace nibble {
namespace {

/// Builds the mixers of a model, taking its linears in the order that linears() lists them.
class MixerFactory {
 public:
  MixerFactory(Device& device, const DecoderSpec& spec, const ParamStore& params, DType compute)
      : device_(device), spec_(spec), params_(params), compute_(compute), linears_(linears(spec)) {}

  std::unique_ptr<Mixer> make(std::size_t sublayer) {
    prefix_ = sublayer_name(spec_, sublayer);
    return std::visit([this](const auto& mixer) { return build(mixer); }, spec_.sublayers[sublayer].mixer);
  }

 private:
  Param param(const std::string& name) const { return params_.param(prefix_ + "." + name, compute_); }

  Linear linear(const std::string& name) {
    LinearInfo info = linears_.at(next_++);
    return Linear(std::move(info), device_, param(name + ".weight"), param(name + ".bias"));
  }

  std::unique_ptr<Mixer> build(const AttentionSpec& a) {
    std::shared_ptr<const RopeTable> rope;
    if (a.rope) {
      if (!rope_) rope_ = std::make_shared<const RopeTable>(device_, *a.rope, a.head_dim, spec_.max_seq);
      rope = rope_;
    }
    Linear qkv = linear("qkv"), out = linear("out");
    return std::make_unique<AttentionLayer>(a, std::move(qkv), std::move(out), std::move(rope));
  }

  std::unique_ptr<Mixer> build(const MlpSpec& m) {
    Linear up = linear("up"), down = linear("down");
    return std::make_unique<Mlp>(m, std::move(up), std::move(down));
  }

  std::unique_ptr<Mixer> build(const Mamba2Spec& m) {
    Linear in = linear("in"), out = linear("out");
    const Mamba2::Params params{.conv_weight_CK = param("conv.weight"),
                                .conv_bias_C = param("conv.bias"),
                                .dt_bias_H = param("dt_bias"),
                                .a_log_H = param("A_log"),
                                .d_H = param("D"),
                                .norm_weight = param("gated_norm.weight")};
    return std::make_unique<Mamba2>(m, static_cast<float>(spec_.norm_eps), std::move(in), std::move(out),
                                    params);
  }

  Device& device_;
  const DecoderSpec& spec_;
  const ParamStore& params_;
  DType compute_;
  std::vector<LinearInfo> linears_;
  std::size_t next_ = 0;
  std::string prefix_;
  std::shared_ptr<const RopeTable> rope_;
};

/// Stands for the observer of a step while a sublayer's forward pass is computed again: it saw the same
/// numbers the first time and wants nothing now, but what it is shown in backward is kept.
struct SeenAlready final : QuantObserver {
  OperandSums* operand(const LinearInfo&, Gemm, Operand, const QuantSpec&) override { return nullptr; }
  DifferenceSums* product(const LinearInfo&, Gemm) override { return nullptr; }
};

/// Into the first element.
void inject_nan(Context& ctx, RealView x_TD) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const bf16 narrow = bf16::nearest(nan);
  const void* from = x_TD.dtype() == DType::F32 ? static_cast<const void*>(&nan) : &narrow;
  ctx.stream.device().copy_from_host(x_TD.data(), from, size_of(x_TD.dtype()));
}

}  // namespace

Decoder::Decoder(Device& device, const DecoderSpec& spec, const ParamStore& params, DType compute)
    : spec_(spec),
      embedding_(params.param("embedding.weight", compute)),
      final_norm_(params.param("final_norm.weight", compute), static_cast<float>(spec.norm_eps)),
      head_(params.param(spec.tied ? "embedding.weight" : "head.weight", compute), spec.vocab) {
  check_spec(spec_);
  MixerFactory factory(device, spec_, params, compute);
  for (std::size_t i = 0; i < spec_.sublayers.size(); ++i)
    sublayers_.push_back({Norm(params.param(sublayer_name(spec_, i) + ".norm.weight", compute),
                               static_cast<float>(spec_.norm_eps)),
                          factory.make(i)});
}

/// The norm's backward reads the old x, so x + y is made elsewhere: in y, when it has the right type.
RealView Decoder::place_for_sum(Context& ctx, RealView x_TD, RealView y_TD) const {
  if (!ctx.training) return x_TD;
  return ctx.residual == ctx.activation ? y_TD
                                        : ctx.arena.take_real(ctx.residual, x_TD.size(0), x_TD.size(1));
}

void Decoder::observe_residual(Context& ctx, std::size_t sublayer, ConstRealView x_TD) const {
  if (ctx.observer == nullptr) return;
  TensorSums* const out = ctx.observer->residual(sublayer_name(spec_, sublayer), sublayer);
  if (out != nullptr) measure_tensor(ctx.stream, {.x_RC = x_TD, .out = out});
}

/// For what the norm before this sublayer writes; null where nobody asks, as the head does not.
float* Decoder::room_for_amax(Context& ctx, std::size_t sublayer) const {
  if (sublayer == sublayers_.size()) return nullptr;
  return sublayers_[sublayer].mixer->first().room_for_amax_of_x(ctx, ctx.arena);
}

RealView Decoder::forward(Context& ctx, View<const std::int32_t> ids_T) {
  const std::int64_t tokens = ids_T.size(0);
  RealView x_TD = ctx.arena.take_real(ctx.residual, tokens, spec_.d_model);
  RealView normed_TD = ctx.activations(tokens, spec_.d_model);
  embedding(ctx.stream, {.ids_T = ids_T, .w_VD = embedding_.compute, .x_TD = x_TD});
  float* amax = room_for_amax(ctx, 0);
  sublayers_.front().norm.forward(ctx, x_TD, normed_TD, amax);
  for (std::size_t i = 0; i < sublayers_.size(); ++i) {
    Sublayer& s = sublayers_[i];
    Norm& next = i + 1 < sublayers_.size() ? sublayers_[i + 1].norm : final_norm_;
    float* const next_amax = room_for_amax(ctx, i + 1);  // outlives this sublayer
    const Arena::Mark before = ctx.arena.mark();
    const RealView y_TD = ctx.activations(tokens, spec_.d_model);
    const Arena::Mark inside = ctx.arena.mark();
    s.saved_normed_TD = {normed_TD, amax};
    s.mixer->forward(ctx, s.saved_normed_TD, y_TD);
    if (ctx.recompute == Recomputation::Block) ctx.arena.rewind(inside);
    const RealView sum_TD = place_for_sum(ctx, x_TD, y_TD);
    if (s.mixer->first().keeps_x(ctx)) normed_TD = ctx.activations(tokens, spec_.d_model);
    next.forward_of_sum(ctx, x_TD, y_TD, sum_TD, normed_TD, next_amax);
    x_TD = sum_TD;
    amax = next_amax;
    observe_residual(ctx, i, x_TD);
    if (!ctx.training) ctx.arena.rewind(before);
  }
  return normed_TD;
}

void Decoder::backward(Context& ctx, View<const std::int32_t> ids_T, RealView dfinal_TD) {
  const std::int64_t tokens = ids_T.size(0);
  const RealView dresidual_TD = ctx.arena.take_real(ctx.residual_gradient, tokens, spec_.d_model);
  // Mixers read the gradient itself where it has the activations' type, else what the norms round of it.
  const bool rounds = ctx.residual_gradient != ctx.activation;
  const RealView rounded_TD = rounds ? ctx.activations(tokens, spec_.d_model) : RealView();
  const RealView dy_TD = rounds ? rounded_TD : dresidual_TD;
  ctx.stream.device().zero(dresidual_TD.data(),
                           static_cast<std::size_t>(dresidual_TD.numel()) * size_of(dresidual_TD.dtype()));
  float* amax = sublayers_.back().mixer->last().room_for_amax_of_dy(ctx, ctx.arena);
  final_norm_.backward(ctx, dfinal_TD, dresidual_TD, rounded_TD, amax);
  if (ctx.step == nan_step_) {
    inject_nan(ctx, dy_TD);
    amax = nullptr;
  }
  const RealView dnormed_TD = dfinal_TD;  // which nobody reads any more
  for (std::size_t i = sublayers_.size(); i-- > 0;) {
    Sublayer& s = sublayers_[i];
    float* const next_amax =
        i == 0 ? nullptr : sublayers_[i - 1].mixer->last().room_for_amax_of_dy(ctx, ctx.arena);
    const ArenaScope temporaries(ctx.arena);
    WithAmax normed_TD = s.saved_normed_TD;
    if (ctx.recomputes()) {
      const RealView again_TD = ctx.activations(tokens, spec_.d_model);
      float* const again_amax = room_for_amax(ctx, i);
      s.norm.again(ctx, again_TD, again_amax);
      normed_TD = {again_TD, again_amax};
    }
    Context whole = ctx;
    SeenAlready seen;
    if (ctx.recompute == Recomputation::Block) {
      whole.recompute = Recomputation::None;
      if (ctx.observer != nullptr) whole.observer = &seen;
      s.mixer->forward(whole, normed_TD,
                       dnormed_TD);  // its output is not needed again: dnormed is free here
      whole.observer = ctx.observer;
    }
    s.mixer->backward(whole, normed_TD, {dy_TD, amax}, dnormed_TD);
    s.norm.backward(ctx, dnormed_TD, dresidual_TD, rounded_TD, next_amax);
    amax = next_amax;
  }
  embedding_backward(ctx.stream, {.ids_T = ids_T, .dx_TD = dresidual_TD, .dw_VD = embedding_.grad});
}

void Decoder::train(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                    View<float> loss_T, float grad_scale) {
  const ArenaScope micro_batch(ctx.arena);
  const RealView final_TD = forward(ctx, ids_T);
  head_.loss(ctx, final_TD, targets_T, loss_T, grad_scale, final_TD);  // its gradient takes its place
  backward(ctx, ids_T, final_TD);
}

void Decoder::evaluate(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                       View<float> loss_T) {
  const ArenaScope micro_batch(ctx.arena);
  ctx.training = false;
  head_.loss(ctx, forward(ctx, ids_T), targets_T, loss_T, 0, {});
}

void Decoder::score(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                    View<float> loss_T, View<float> greedy_T) {
  const ArenaScope micro_batch(ctx.arena);
  ctx.training = false;
  head_.score(ctx, forward(ctx, ids_T), targets_T, loss_T, greedy_T);
}

void Decoder::logits(Context& ctx, View<const std::int32_t> ids_T, View<float> logits_TV) {
  const ArenaScope micro_batch(ctx.arena);
  ctx.training = false;
  head_.logits(ctx, forward(ctx, ids_T), logits_TV);
}

TokenScores scores_of(Decoder& model, Context& ctx, View<const std::int32_t> ids_T,
                      View<const std::int32_t> targets_T) {
  check_ids(ids_T, model.spec().vocab);
  check_targets(targets_T, model.spec().vocab);
  Device& device = ctx.stream.device();
  const ArenaScope scope(ctx.arena);
  const std::int64_t tokens = ids_T.size(0);
  const std::size_t bytes = static_cast<std::size_t>(tokens) * sizeof(std::int32_t);
  const View<std::int32_t> ids = ctx.arena.take<std::int32_t>(tokens);
  const View<std::int32_t> targets = ctx.arena.take<std::int32_t>(tokens);
  const View<float> loss_T = ctx.arena.take<float>(tokens), greedy_T = ctx.arena.take<float>(tokens);
  device.copy_from_host(ids.data(), ids_T.data(), bytes);
  device.copy_from_host(targets.data(), targets_T.data(), bytes);
  model.score(ctx, ids, targets, loss_T, greedy_T);
  return {on_host(device, loss_T), on_host(device, greedy_T)};
}

}  // namespace nibble
