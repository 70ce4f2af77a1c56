// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/device.h"
#include "ops/quantize/amax_history.h"
#include "ops/step_record.h"
#include "recipe/resolve.h"

namespace nibble {

/// The state of operands that are quantised under another amax than their own: for every operand of every
/// GEMM of every linear the amaxes of the last steps and the one used last, in the backend's memory. A run
/// has one where its recipe asks for it; checkpoints hold it.
class AmaxState {
 public:
  /// Operands of one linear: fprop A, B, dgrad A, B, wgrad A, B.
  static constexpr std::int64_t kOperandsOfALinear = 6;

  AmaxState(Device& device, std::int64_t linears, std::int64_t history, int margin);

  /// Notes `found`, the amax of an operand in this micro-batch, and returns where the amax to quantise it
  /// under stands. The step is record->step where there is a record.
  const float* choose(Stream& stream, const LinearInfo& linear, Gemm gemm, Operand operand,
                      const QuantSpec& spec, const float* found, std::int64_t step,
                      const StepRecord* record) const;

  /// Ends a step: one that was halted leaves no trace.
  void push(Stream& stream, std::int64_t step, const StepRecord* record) const;

  std::int64_t linears() const { return history_SL_.size(0) / kOperandsOfALinear; }
  std::int64_t history() const { return history_SL_.size(1); }
  /// Of one linear, by its position: [6, history], step s at s % history; and [6], the amaxes used last.
  View<float> history_of(std::int64_t position) const;
  View<float> used_of(std::int64_t position) const;

 private:
  Buffer memory_;
  int margin_;
  View<float> history_SL_, pending_S_, used_S_;
};

/// Whether `scaling` takes an amax from AmaxState instead of the operand's own.
constexpr bool has_amax_rule(TensorScaling scaling) { return scaling > TensorScaling::Row; }

/// What the quantiser is told: where an amax comes from is not its business.
inline QuantSpec for_quantiser(QuantSpec spec) {
  if (has_amax_rule(spec.tensor_scaling)) spec.tensor_scaling = TensorScaling::Tensor;
  return spec;
}

/// Whether a recipe has such an operand, at any step; and the history that it needs.
bool needs_amax_state(const Recipe& recipe);
std::int64_t history_of(const Recipe& recipe);

}  // namespace nibble
