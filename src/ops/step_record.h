// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble {

/// The numbers of one training step, in the backend's memory: nobody waits for them inside the step, and a
/// recorded step can be issued again with others.
struct StepRecord {
  // Written by the host before the step.
  std::uint32_t step = 0;  ///< from 0; the step of all random keys (RandomKey::step_at)
  float lr = 0;
  float inverse_correction1 = 1;  ///< 1 / (1 - beta1^(step + 1))
  float inverse_correction2 = 1;
  std::int64_t fault = -1;  ///< Quantize::fault: the first operand that held a NaN or an infinity
  // Written by the step.
  double loss_sum = 0;      ///< over the step's tokens, nats
  double grad_squares = 0;  ///< of all gradients
  float grad_scale = 1;     ///< see GateUpdate in ops/adamw/adamw.h
  /// Set by a step that must not update, and kept: steps issued after it update nothing either.
  std::uint32_t halted = 0;
};

/// The bytes of a StepRecord that the host writes before a step.
inline constexpr std::size_t kStepRecordHead = offsetof(StepRecord, loss_sum);

}  // namespace nibble
