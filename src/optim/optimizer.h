// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.h"

namespace nibble {

struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< on parameters whose piece says `decay`
  double clip = 1;            ///< global gradient norm; 0: no clipping
};

/// One tensor's stretch of the flat buffers.
struct ParamPiece {
  View<float> w, m, v;
  View<const float> grad;
  RealView copy;  ///< BF16 compute copy, or empty
  bool decay = false;
};

/// Norm of all gradients: sqrt(sum of squares), summed in double in a fixed order.
double gradient_norm(Stream& stream, View<const float> all_grads);

/// min(1, clip / (norm + 1e-6)), or 1 without clipping.
double clip_factor(double norm, double clip);

/// One AdamW update (ops/adamw/adamw.h) of every piece with learning rate `lr`; `step` counts from 0.
void adamw_step(Stream& stream, const OptimizerConfig& config, const std::vector<ParamPiece>& pieces,
                double lr, double grad_scale, std::int64_t step);

}  // namespace nibble
