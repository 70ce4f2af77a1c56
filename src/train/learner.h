// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "models/decoder.h"
#include "models/param_store.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "recipe/recipe.h"

namespace nibble {

/// Everything that decides what a run computes, and nothing else: no thread count, no path.
struct LearnerConfig {
  DecoderSpec model;
  Recipe recipe;
  OptimizerConfig optimizer;
  Schedule schedule;
  std::int64_t sequence = 0;          ///< tokens of a sequence
  std::int64_t batch = 0;             ///< sequences of a step
  std::int64_t micro_batch = 0;       ///< sequences at a time; divides batch
  std::uint64_t seed = 0;             ///< start values
  std::uint64_t sr_seed = 0;          ///< stochastic rounding
  std::int64_t inject_nan_step = -1;  ///< planted fault; negative: never
};

struct StepResult {
  double loss = 0;       ///< mean over the step's tokens, nats
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
};

/// A model with its optimizer: the state that a checkpoint holds, and the training step.
class Learner {
 public:
  /// Start values are a pure function of the seed. Throws Error{Usage} for a configuration that cannot run.
  Learner(Stream& stream, const LearnerConfig& config);

  const LearnerConfig& config() const { return config_; }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  std::int64_t steps_done() const { return steps_done_; }

  /// One step on ids_T and targets_T, [batch * sequence] tokens. step.cpp.
  /// Throws Error{NonFinite} naming step and place; the weights are then those of before the step.
  StepResult step(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                  QuantObserver* observer);

  /// Mean loss in nats of whole sequences through the `bf16` forward, whatever the recipe: every arm of a
  /// comparison is judged by the same arithmetic.
  double evaluate(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T);

  /// After weights, states and step were loaded from elsewhere.
  void restored(std::int64_t steps_done);

 private:
  Context context(std::int64_t first_token);
  void update(double lr, double grad_norm);
  void require_finite(double value, const char* what) const;

  Stream& stream_;
  LearnerConfig config_;
  Recipe evaluation_recipe_;
  ParamStore params_;
  Decoder model_;
  std::unique_ptr<Decoder> bf16_model_;  ///< for evaluation, when the recipe computes in FP32
  std::vector<ParamPiece> pieces_;
  Arena arena_;
  std::int64_t steps_done_ = 0;
  std::uint64_t weights_version_ = 0;
};

}  // namespace nibble
