// SPDX-License-Identifier: Apache-2.0
#include "layers/amax_state.h"

#include "quant/nvfp4.h"

namespace nibble {
namespace {

std::int64_t slot(const LinearInfo& linear, Gemm gemm, Operand operand) {
  return AmaxState::kOperandsOfALinear * linear.position +
         static_cast<std::int64_t>(random_role(gemm, operand));
}

AmaxRule rule_of(TensorScaling scaling) {
  return scaling == TensorScaling::Delayed    ? AmaxRule::Delayed
         : scaling == TensorScaling::Previous ? AmaxRule::Previous
                                              : AmaxRule::Fixed;
}

/// The amax whose scale is 1.
float amax_of_one(Format format) {
  return format == Format::Nvfp4 ? nvfp4::kRange : info(format).element_max;
}

template <class F>
bool any_operand(const Recipe& recipe, F&& f) {
  for (const GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) {
    if (f(gemm->a) || f(gemm->b)) return true;
  }
  for (const RecipeSwitch& s : recipe.switches) {
    if (any_operand(s.to, f)) return true;
  }
  return false;
}

}  // namespace

AmaxState::AmaxState(Device& device, std::int64_t linears, std::int64_t history, int margin)
    : margin_(margin) {
  const std::int64_t slots = kOperandsOfALinear * linears;
  memory_ = Buffer(device, static_cast<std::size_t>(slots * (history + 2)) * sizeof(float));
  history_SL_ = View<float>(memory_.as<float>(), slots, history);
  pending_S_ = View<float>(memory_.as<float>() + slots * history, slots);
  used_S_ = View<float>(pending_S_.data() + slots, slots);
}

const float* AmaxState::choose(Stream& stream, const LinearInfo& linear, Gemm gemm, Operand operand,
                               const QuantSpec& spec, const float* found, std::int64_t step,
                               const StepRecord* record) const {
  const std::int64_t s = slot(linear, gemm, operand);
  choose_amax(stream, {.found = found,
                       .history_L = history_SL_.row(s),
                       .rule = rule_of(spec.tensor_scaling),
                       .start = amax_of_one(spec.format),
                       .margin = margin_,
                       .step = static_cast<std::uint32_t>(step),
                       .step_at = record != nullptr ? &record->step : nullptr,
                       .pending = &pending_S_(s),
                       .used = &used_S_(s)});
  return &used_S_(s);
}

void AmaxState::push(Stream& stream, std::int64_t step, const StepRecord* record) const {
  push_amax(stream, {.pending_S = pending_S_,
                     .history_SL = history_SL_,
                     .step = static_cast<std::uint32_t>(step),
                     .step_at = record != nullptr ? &record->step : nullptr,
                     .halted = record != nullptr ? &record->halted : nullptr});
}

View<float> AmaxState::history_of(std::int64_t position) const {
  return history_SL_.rows(kOperandsOfALinear * position, kOperandsOfALinear);
}

View<float> AmaxState::used_of(std::int64_t position) const {
  return used_S_.rows(kOperandsOfALinear * position, kOperandsOfALinear);
}

bool needs_amax_state(const Recipe& recipe) {
  return any_operand(recipe, [](const QuantSpec& spec) { return has_amax_rule(spec.tensor_scaling); });
}

std::int64_t history_of(const Recipe& recipe) {
  const bool delayed = any_operand(
      recipe, [](const QuantSpec& spec) { return spec.tensor_scaling == TensorScaling::Delayed; });
  return delayed ? recipe.amax_history : 1;
}

}  // namespace nibble
