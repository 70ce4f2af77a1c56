// SPDX-License-Identifier: Apache-2.0
// The training step, as the method's description reads:
//   for each micro-batch: forward, loss and backward, with the gradients summed in FP32;
//   then clip by the global norm, and let AdamW move the FP32 master weights and round their BF16 copies.
// Where a linear quantises what is in layers/linear.cpp; everything it needs to know is in the Context.
// Nothing here waits: losses, norms and faults stay in the step's record, and a step that is not sound
// updates nothing.
#include "ops/adamw/adamw.h"
#include "train/learner.h"
#include "train/weight_probe.h"

namespace nibble {

void Learner::compute(QuantObserver* observer) {
  const std::int64_t tokens = config_.batch * config_.sequence,
                     micro = config_.micro_batch * config_.sequence;
  const ArenaScope scope(arena_);
  const View<float> loss_T = arena_.take<float>(tokens);

  for (std::int64_t begin = 0; begin < tokens; begin += micro) {
    Context ctx = context(begin);
    ctx.first_wgrad = begin == 0 || config_.lost_micro_batches;
    if (ctx.first_wgrad) params_.begin_grads();
    ctx.observer = observer;
    model_.train(ctx, ids().rows(begin, micro), targets().rows(begin, micro), loss_T.rows(begin, micro),
                 1.0f / static_cast<float>(tokens));
  }
  const std::vector<KeptWeight> kept =
      observer == nullptr
          ? std::vector<KeptWeight>{}
          : keep_weights(stream_, arena_, params_, linears_,
                         plan_of_step(config_.recipe, linears_, steps_begun_), steps_begun_, *observer);
  sum(stream_, {.x_N = loss_T, .sum = &record()->loss_sum});
  optimizer_step(stream_, config_.optimizer, flat_, record());
  if (amaxes_) amaxes_->push(stream_, steps_begun_, record());
  compare_weights(stream_, params_, kept);
}

}  // namespace nibble
