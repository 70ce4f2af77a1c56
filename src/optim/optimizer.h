// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/device.h"
#include "ops/adamw/adamw.h"

namespace nibble {

struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< on parameters whose piece says `decay`
  double clip = 1;            ///< global gradient norm; 0: no clipping
};

/// The flat buffers of a model as the optimizer sees them.
struct FlatParams {
  View<float> w, m, v;
  View<const float> grad;
  RealView copy;                      ///< BF16 compute copy
  View<const std::uint8_t> decays;    ///< AdamW::decays_G
  View<const std::int32_t> starts{};  ///< AdamW::starts_S
  View<float> amaxes{};               ///< of the tensors' copies, for the quantisers of the next step
};

/// What the host writes into the record of step `step` (from 0) before the step.
StepRecord step_head(const OptimizerConfig& config, std::int64_t step, double lr);

/// The end of a step, when loss_sum is in the record: the global norm, the gate, and one AdamW update
/// (ops/adamw/adamw.h) of everything.
void optimizer_step(Stream& stream, const OptimizerConfig& config, const FlatParams& params,
                    StepRecord* record);

}  // namespace nibble
