// SPDX-License-Identifier: Apache-2.0
// The training step, as the method's description reads:
//   for each micro-batch: forward, loss and backward, with the gradients summed in FP32;
//   then clip by the global norm, and let AdamW move the FP32 master weights and round their BF16 copies.
// Where a linear quantises what is in layers/linear.cpp; everything it needs to know is in the Context.
#include <cmath>

#include "base/error.h"
#include "train/learner.h"

namespace nibble {

StepResult Learner::step(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                         QuantObserver* observer) {
  const std::int64_t tokens = config_.batch * config_.sequence,
                     micro = config_.micro_batch * config_.sequence;
  check(ids_T.size(0) == tokens && targets_T.size(0) == tokens, "a step takes {} tokens, got {}", tokens,
        ids_T.size(0));
  const ArenaScope scope(arena_);
  const View<float> loss_T = arena_.take<float>(tokens);

  params_.zero_grads();
  for (std::int64_t begin = 0; begin < tokens; begin += micro) {
    Context ctx = context(begin);
    ctx.observer = observer;
    model_.train(ctx, ids_T.rows(begin, micro), targets_T.rows(begin, micro), loss_T.rows(begin, micro),
                 1.0f / static_cast<float>(tokens));
  }

  StepResult result;
  for (std::int64_t t = 0; t < tokens; ++t) result.loss += loss_T(t) / static_cast<double>(tokens);
  require_finite(result.loss, "the loss");
  result.grad_norm = gradient_norm(stream_, params_.all_grads());
  require_finite(result.grad_norm, "the gradient norm");
  result.lr = config_.schedule.at(steps_done_);
  update(result.lr, result.grad_norm);
  return result;
}

void Learner::update(double lr, double grad_norm) {
  adamw_step(stream_, config_.optimizer, pieces_, lr, clip_factor(grad_norm, config_.optimizer.clip),
             steps_done_);
  ++steps_done_;
  ++weights_version_;
}

}  // namespace nibble
