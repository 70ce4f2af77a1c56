// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <cmath>

namespace nibble {
namespace {

float inverse_correction(double beta, std::int64_t updates) {
  const auto b = static_cast<double>(static_cast<float>(beta));
  return static_cast<float>(1 / (1 - std::pow(b, static_cast<double>(updates))));
}

}  // namespace

StepRecord step_head(const OptimizerConfig& config, std::int64_t step, double lr) {
  return {.step = static_cast<std::uint32_t>(step),
          .lr = static_cast<float>(lr),
          .inverse_correction1 = inverse_correction(config.beta1, step + 1),
          .inverse_correction2 = inverse_correction(config.beta2, step + 1)};
}

void optimizer_step(Stream& stream, const OptimizerConfig& config, const FlatParams& params,
                    StepRecord* record) {
  sum_squares(stream, {.x_N = params.grad, .sum = &record->grad_squares});
  gate_update(stream, {.record = record, .clip = static_cast<float>(config.clip)});
  adamw(stream, {.w_N = params.w,
                 .m_N = params.m,
                 .v_N = params.v,
                 .grad_N = params.grad,
                 .copy_N = params.copy,
                 .record = record,
                 .beta1 = static_cast<float>(config.beta1),
                 .beta2 = static_cast<float>(config.beta2),
                 .eps = static_cast<float>(config.eps),
                 .weight_decay = static_cast<float>(config.weight_decay),
                 .decays_G = params.decays,
                 .starts_S = params.starts,
                 .amaxes_S = params.amaxes});
}

}  // namespace nibble
