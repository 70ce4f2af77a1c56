// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/adamw/adamw.h"

namespace nibble {

double gradient_norm(Stream& stream, View<const float> all_grads) {
  double sum = 0;
  sum_squares(stream, {.x_N = all_grads, .sum = &sum});
  return std::sqrt(sum);
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

void adamw_step(Stream& stream, const OptimizerConfig& config, const std::vector<ParamPiece>& pieces,
                double lr, double grad_scale, std::int64_t step) {
  for (const ParamPiece& p : pieces)
    adamw(stream, {.w_N = p.w,
                   .m_N = p.m,
                   .v_N = p.v,
                   .grad_N = p.grad,
                   .copy_N = p.copy,
                   .lr = static_cast<float>(lr),
                   .beta1 = static_cast<float>(config.beta1),
                   .beta2 = static_cast<float>(config.beta2),
                   .eps = static_cast<float>(config.eps),
                   .weight_decay = p.decay ? static_cast<float>(config.weight_decay) : 0.0f,
                   .grad_scale = static_cast<float>(grad_scale),
                   .step = step + 1});
}

}  // namespace nibble
