// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "base/error.h"
#include "layers/amax_state.h"
#include "models/decoder.h"
#include "models/param_store.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "quant/native_gemm.h"
#include "recipe/recipe.h"
#include "recipe/resolve.h"

namespace nibble {

/// Everything that decides what a run computes, and nothing else: no thread count, no path.
struct LearnerConfig {
  DecoderSpec model;
  Recipe recipe;
  OptimizerConfig optimizer;
  Schedule schedule;
  std::int64_t sequence = 0;     ///< tokens of a sequence
  std::int64_t batch = 0;        ///< sequences of a step
  std::int64_t micro_batch = 0;  ///< sequences at a time; divides batch
  Recomputation recompute = Recomputation::None;
  std::uint64_t seed = 0;     ///< start values
  std::uint64_t sr_seed = 0;  ///< stochastic rounding
  /// Record the step once and issue the record again, where the device can (a CUDA graph). The same bits
  /// either way.
  bool record_steps = true;
  /// The formats whose products multiply the codes themselves where the device can; the others have exact
  /// BF16 operands. The two differ in how sums are accumulated.
  NativeGemm native{.fp8 = true, .fp4 = true, .mxfp8 = true};
  /// For tests: the path of those formats also where the device cannot. On ref and cpu the codes are decoded,
  /// on a card the product says what it lacks.
  bool decode_codes = false;
  /// The same bits in every run. False: attention's backward pass on cuda may add in any order, which is
  /// faster.
  bool repeatable = true;
  std::int64_t inject_nan_step = -1;  ///< planted fault; negative: never
  bool lost_micro_batches = false;    ///< planted fault: the gradients of all but the last are dropped
};

struct StepResult {
  double loss = 0;       ///< mean over the step's tokens, nats
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
};

/// A step whose loss, gradients or operands are not finite, and where it was seen first.
class NonFiniteStep final : public Error {
 public:
  NonFiniteStep(const std::string& what, std::int64_t step, std::string layer, std::string gemm,
                std::string operand)
      : Error(ErrorKind::NonFinite, what),
        step(step),
        layer(std::move(layer)),
        gemm(std::move(gemm)),
        operand(std::move(operand)) {}
  std::int64_t step;                 ///< from 0
  std::string layer, gemm, operand;  ///< the first quantised operand; empty: the loss or the norm alone
};

/// A model with its optimizer: the state that a checkpoint holds, and the training step.
///
/// A step is begun and finished apart: begin() issues all of its work and waits for nothing, finish() waits
/// for the oldest step begun and says what it gave. Between them the host prepares the next batch. On the
/// host backends begin() has done everything when it returns. Everything else here waits for steps in flight
/// first.
class Learner {
 public:
  static constexpr int kInFlight = 2;  ///< steps that may be begun and not finished

  /// Start values are a pure function of the seed. Throws Error{Usage} for a configuration that cannot run.
  Learner(Stream& stream, const LearnerConfig& config);

  const LearnerConfig& config() const { return config_; }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  /// The formats that this device multiplies as they are stored, of those that the configuration allows.
  const NativeGemm& native() const { return native_; }
  Device& device() const { return stream_.device(); }
  std::int64_t steps_done() const { return steps_begun_ - in_flight_; }  ///< finished
  std::int64_t steps_begun() const { return steps_begun_; }
  int in_flight() const { return in_flight_; }

  /// Issues one step on ids_T and targets_T, [batch * sequence] tokens in host memory, copied before it
  /// returns. What `observer` (or null) asks for is measured on the way, and is there when the step is
  /// finished. Throws Error{Runtime} for a token outside the vocabulary.
  void begin(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T, QuantObserver* observer);

  /// The oldest step begun. Throws NonFiniteStep (an Error{NonFinite}) naming step and place; the weights are
  /// then those of before that step, which is the next one again, and nothing is in flight.
  StepResult finish();

  StepResult step(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T,
                  QuantObserver* observer) {
    begin(ids_T, targets_T, observer);
    return finish();
  }

  /// Mean loss in nats of whole sequences in host memory through the `bf16` forward, whatever the recipe:
  /// every arm of a comparison is judged by the same arithmetic. Nothing may be in flight.
  double evaluate(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T);

  /// Loss and greedy match of every token of sequences of `length` tokens in host memory, through the same
  /// forward as evaluate(). Nothing may be in flight.
  TokenScores score(View<const std::int32_t> ids_T, View<const std::int32_t> targets_T, std::int64_t length);

  /// After weights, states and step were loaded from elsewhere.
  void restored(std::int64_t steps_done);

  /// What a checkpoint holds beside weights and optimizer; null where the recipe has no such state.
  const AmaxState* amaxes() const { return amaxes_.get(); }

 private:
  /// Host memory of one step in flight.
  struct Slot {
    HostBuffer head, tokens, result;
    std::uint64_t done = 0;
  };

  void compute(QuantObserver* observer);  // step.cpp
  void issue(QuantObserver* observer);
  Context context(std::int64_t first_token);
  Context evaluation_context(std::int64_t length);
  Decoder& evaluation_model() { return bf16_model_ ? *bf16_model_ : model_; }
  StepRecord* record() const { return record_.as<StepRecord>(); }
  View<const std::int32_t> ids() const;
  View<const std::int32_t> targets() const;
  void require_sound(const StepRecord& r);

  Stream& stream_;
  LearnerConfig config_;
  Recipe evaluation_recipe_;
  std::vector<LinearInfo> linears_;
  ParamStore params_;
  Decoder model_;
  std::unique_ptr<Decoder> bf16_model_;  ///< for evaluation, when the recipe computes in FP32
  std::unique_ptr<AmaxState> amaxes_;
  FlatParams flat_;
  Arena arena_;
  Buffer record_, tokens_;  ///< the step's numbers, and its ids and targets, in the backend's memory
  std::array<Slot, kInFlight> slots_;
  std::unique_ptr<Recording> recording_;
  std::vector<ResolvedLinear> plan_;  ///< of the last step begun: its memory and library plans are there
  NativeGemm native_;
  bool warm_ = false;  ///< a step was computed
  std::int64_t steps_begun_ = 0;
  int in_flight_ = 0;
  std::uint64_t weights_version_ = 0;
};

}  // namespace nibble
