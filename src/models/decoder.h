// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "layers/context.h"
#include "layers/head.h"
#include "layers/mixer.h"
#include "layers/norm.h"
#include "models/param_store.h"
#include "models/spec.h"

namespace nibble {

/// A decoder-only language model: embedding, sublayers x + mixer(norm(x)), final norm, head. Llama-like and
/// hybrid Mamba-2 models differ only in their list of sublayers.
///
/// The residual stream is stored as ctx.residual; its gradient is one buffer [T, D] of ctx.residual_gradient,
/// FP32 by default, into which every norm's backward adds. One micro-batch is in flight at a time; all memory
/// comes from ctx.arena and is given back when a call returns.
class Decoder {
 public:
  /// The parameters stay in `params`, which outlives the model. `compute` is what GEMMs read: the BF16 copies
  /// or, for a recipe whose base is FP32, the master weights.
  Decoder(Device& device, const DecoderSpec& spec, const ParamStore& params, DType compute);

  const DecoderSpec& spec() const { return spec_; }

  /// Forward and backward of one micro-batch: loss_T [T] in nats, and the gradients of grad_scale * sum of
  /// loss_T added to the main gradients.
  void train(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
             View<float> loss_T, float grad_scale);

  /// Forward alone.
  void evaluate(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                View<float> loss_T);

  /// Forward alone: loss_T as above, and greedy_T, 1 where the target is the most likely token, else 0.
  void score(Context& ctx, View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
             View<float> loss_T, View<float> greedy_T);

  /// logits_TV [T, V] in FP32.
  void logits(Context& ctx, View<const std::int32_t> ids_T, View<float> logits_TV);

  /// Planted fault for tests of the guards: puts a NaN into the gradient that enters the last sublayer in the
  /// step `step`; negative: never.
  void inject_nan_at(std::int64_t step) { nan_step_ = step; }

 private:
  struct Sublayer {
    Norm norm;
    std::unique_ptr<Mixer> mixer;
    WithAmax saved_normed_TD;
  };

  RealView forward(Context& ctx, View<const std::int32_t> ids_T);
  void observe_residual(Context& ctx, std::size_t sublayer, ConstRealView x_TD) const;
  float* room_for_amax(Context& ctx, std::size_t sublayer) const;
  RealView place_for_sum(Context& ctx, RealView x_TD, RealView y_TD) const;
  /// dfinal_TD is overwritten.
  void backward(Context& ctx, View<const std::int32_t> ids_T, RealView dfinal_TD);

  DecoderSpec spec_;
  Param embedding_;
  std::vector<Sublayer> sublayers_;
  Norm final_norm_;
  Head head_;
  std::int64_t nan_step_ = -1;
};

/// What score() gives, in host memory.
struct TokenScores {
  std::vector<float> loss;    ///< nats, a token; 0 where the target is -1
  std::vector<float> greedy;  ///< 1 or 0
};

/// score() on tokens in host memory. Throws Error{Runtime} for a token outside the vocabulary.
TokenScores scores_of(Decoder& model, Context& ctx, View<const std::int32_t> ids_T,
                      View<const std::int32_t> targets_T);

}  // namespace nibble
