// SPDX-License-Identifier: Apache-2.0
#include "train/quant_monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "quant/format_names.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string drift_key(const OperandName& w) { return w.layer + "|" + w.gemm + "|" + w.operand; }

QuantEvent event_of(std::int64_t step, const OperandName& where, const QuantSpec& spec,
                    const OperandSums& sums) {
  const QuantStats& s = sums.quantised;
  QuantEvent e;
  e.step = step;
  e.where = where;
  e.format = format_name(spec);
  e.amax = s.amax;
  e.flushed = s.flushed_share();
  e.underflows = 100 * share(s.flushed, s.count);
  e.saturated = s.saturated_share();
  e.zero_blocks = share(s.zero_blocks, s.blocks);
  e.scale_max = share(s.scale_max, s.blocks);
  e.scale_subnormal = share(s.scale_subnormal, s.blocks);
  e.scale_zero = share(s.scale_zero, s.blocks);
  std::copy(std::begin(s.scale_histogram), std::end(s.scale_histogram), e.scale_log2.begin());
  std::copy(std::begin(s.code_histogram), std::end(s.code_histogram), e.codes.begin());
  e.sqnr_db = s.sqnr_db();
  e.mse = s.count > 0 ? s.sum_e2 / static_cast<double>(s.count) : 0;
  e.bias = s.bias();
  e.cosine = s.cosine();
  e.crest = s.crest();
  e.crest_unrotated = sums.unrotated.count > 0 ? sums.unrotated.crest() : e.crest;
  e.deviation = s.deviation();
  e.l1_norm = s.sum_abs;
  e.l2_norm = std::sqrt(s.sum_x2);
  e.dynamic_range = s.dynamic_range();
  e.block_dynamic_range = s.block_dynamic_range();
  e.scale_inv_min = s.scale_inv_min;
  e.scale_inv_max = s.scale_inv_max;
  e.code_entropy = s.code_entropy();
  return e;
}

OperandCheck check_of(std::int64_t step, const OperandName& where, const QuantSpec& spec,
                      const QuantStats& s) {
  OperandCheck c{.step = step, .where = where};
  if (s.sum_x2 <= 0) return c;  // nothing was there to be quantised
  c.gain = s.sum_xq / s.sum_x2;
  const std::int64_t inexact = s.scale_zero + s.scale_subnormal, live = s.blocks - s.zero_blocks;
  const bool exact_scales = 10 * inexact <= live;
  if (is_stochastic(spec.rounding) && is_common(spec) && exact_scales) {
    c.bias = s.bias();
    c.bias_error = std::sqrt(s.sum_e2) / s.sum_abs;
  }
  // Blocks with an inexact scale may leave the largest code unused; few blocks say little.
  constexpr std::int64_t kFewestBlocks = 16;
  if (spec.format == Format::Nvfp4 && is_common(spec) && live - inexact >= kFewestBlocks)
    c.full_codes = static_cast<double>(s.saturated) / static_cast<double>(live - inexact);
  return c;
}

bool wants_any(const TelemetrySelection& selection, std::span<const char* const> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* n) { return selection.has_statistic(n); });
}

bool wants_operands(const TelemetrySelection& s) {
  const auto statistics = operand_statistics();
  return s.has_statistic(kScaleHistogram) || s.has_statistic(kCodeHistogram) ||
         std::any_of(statistics.begin(), statistics.end(),
                     [&](const Statistic& one) { return s.has_statistic(one.name); });
}

/// Of an operand whose error is not measured: as much as four bits leave of a Gaussian.
constexpr double kUnknownSqnr = 17;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::string format_name(const QuantSpec& spec) { return arithmetic_name(spec); }

QuantMonitor::QuantMonitor(Device& device, AlarmRules rules, TelemetrySelection selection)
    : rules_(rules),
      selection_(std::move(selection)),
      operands_wanted_(wants_operands(selection_)),
      products_wanted_(selection_.has_statistic(kOutputError)),
      weights_wanted_(wants_any(selection_, kWeightStatistics)),
      residuals_wanted_(wants_any(selection_, kResidualStatistics)),
      logits_wanted_(selection_.has_statistic(kLogitMax)),
      monitor_(rules),
      sums_(device) {}

bool QuantMonitor::has_layer(const std::string& name) const {
  const std::vector<std::string>& globs = selection_.layers;
  return globs.empty() ||
         std::any_of(globs.begin(), globs.end(), [&](const std::string& g) { return glob_match(g, name); });
}

OperandSums* QuantMonitor::operand(const LinearInfo& linear, Gemm gemm, Operand operand,
                                   const QuantSpec& spec) {
  const OperandName where{linear.name, linear.block, std::string(name(gemm)),
                          std::string(operand_name(gemm, operand))};
  if (!operands_wanted_ || !selection_.has_gemm(where.gemm) || !selection_.has_tensor(where.operand) ||
      !has_layer(linear.name))
    return nullptr;
  const auto [it, is_new] = now_.operands.try_emplace(
      OperandKey{linear.position, static_cast<int>(gemm), static_cast<int>(operand)});
  if (is_new) it->second = {{where, spec}, sums_.take<OperandSums>()};
  return sums_.at<OperandSums>(it->second.place);
}

DifferenceSums* QuantMonitor::product(const LinearInfo& linear, Gemm gemm) {
  if (!products_wanted_ || !selection_.has_gemm(name(gemm)) || !has_layer(linear.name)) return nullptr;
  const auto [it, is_new] = now_.products.try_emplace(ProductKey{linear.position, static_cast<int>(gemm)});
  if (is_new)
    it->second = {{linear.name, linear.block, std::string(name(gemm)), ""}, sums_.take<DifferenceSums>()};
  return sums_.at<DifferenceSums>(it->second.place);
}

WeightSums* QuantMonitor::weight(const LinearInfo& linear, const QuantSpec& spec) {
  if (!weights_wanted_ || !selection_.has_tensor("w") || !has_layer(linear.name)) return nullptr;
  const auto [it, is_new] = now_.weights.try_emplace(linear.position);
  if (is_new) it->second = {{linear.name, linear.block, is_quantized(spec.format)}, sums_.take<WeightSums>()};
  return sums_.at<WeightSums>(it->second.place);
}

QuantMonitor::LayerPlaces& QuantMonitor::layer(const std::string& sublayer) {
  const auto [it, is_new] = now_.layers.try_emplace(sublayer, LayerPlaces{sublayer, {}, {}});
  if (is_new) now_.layer_order.push_back(sublayer);
  return it->second;
}

TensorSums* QuantMonitor::residual(const std::string& sublayer, std::size_t) {
  if (!residuals_wanted_) return nullptr;
  LayerPlaces& places = layer(sublayer);
  if (!places.residual) places.residual = sums_.take<TensorSums>();
  return sums_.at<TensorSums>(*places.residual);
}

LogitSums* QuantMonitor::logits(const std::string& sublayer, std::size_t) {
  if (!logits_wanted_) return nullptr;
  LayerPlaces& places = layer(sublayer);
  if (!places.logits) places.logits = sums_.take<LogitSums>();
  return sums_.at<LogitSums>(*places.logits);
}

void QuantMonitor::issued() {
  sums_.send();
  flying_.push_back(std::move(now_));
  now_ = {};
}

double QuantMonitor::sqnr(const Measured& m, const ProductKey& key, Operand operand) const {
  const auto it = m.operands.find({key.first, key.second, static_cast<int>(operand)});
  return it == m.operands.end() ? std::numeric_limits<double>::infinity()
                                : sums_.host<OperandSums>(it->second.place).quantised.sqnr_db();
}

void QuantMonitor::recall(const QuantEvent& event) {
  drift_[drift_key(event.where)].push(event.step, event.amax);
  monitor_.inspect(event);
}

void QuantMonitor::finish_operands(std::int64_t step, const Measured& m, Sink& sink) {
  for (const auto& [key, found] : m.operands) {
    const OperandSums& sums = sums_.host<OperandSums>(found.place);
    const OperandName& where = found.name.where;
    QuantEvent e = event_of(step, where, found.name.spec, sums);
    e.amax_drift = drift_[drift_key(where)].push(e.step, e.amax);
    sink.on(e);
    for (const AlarmEvent& alarm : monitor_.inspect(e)) sink.on(alarm);
    if (const auto alarm = check_operand(check_of(step, where, found.name.spec, sums.quantised), rules_))
      sink.on(*alarm);
  }
}

void QuantMonitor::finish_products(std::int64_t step, const Measured& m, Sink& sink) {
  for (const auto& [key, found] : m.products) {
    const double error = sums_.host<DifferenceSums>(found.place).relative_error();
    // Without the operands' own statistics there is nothing to explain the error with.
    const bool known = operands_wanted_ && selection_.tensors.empty();
    const GemmCheck check{.step = step,
                          .where = found.name,
                          .relative_error = error,
                          .sqnr_a_db = known ? sqnr(m, key, Operand::A) : kUnknownSqnr,
                          .sqnr_b_db = known ? sqnr(m, key, Operand::B) : kUnknownSqnr};
    sink.on(GemmEvent{step, found.name, error, explained_gemm_error(check.sqnr_a_db, check.sqnr_b_db)});
    if (const auto alarm = check_gemm(check, rules_)) sink.on(*alarm);
  }
}

void QuantMonitor::finish_rest(std::int64_t step, const Measured& m, Sink& sink) const {
  for (const auto& [position, found] : m.weights) {
    const WeightSums& w = sums_.host<WeightSums>(found.place);
    WeightEvent e{.step = step, .layer = found.name.layer, .block = found.name.block};
    e.update_ratio = w.update.relative_error();
    e.gradient_zeros = w.gradient.zero_share();
    e.gradient_rms = w.gradient.rms();
    e.oscillation = !found.name.quantised    ? kNone
                    : w.update.sum_abs_e > 0 ? w.decoded.sum_abs_e / w.update.sum_abs_e
                                             : 0;
    e.changed = found.name.quantised ? w.decoded.changed_share() : kNone;
    sink.on(e);
  }
  for (const std::string& layer : m.layer_order) {
    const LayerPlaces& places = m.layers.at(layer);
    LayerEvent e{.step = step, .layer = layer};
    e.residual_rms = e.residual_amax = e.attention_logit_max = kNone;
    if (places.residual) {
      const TensorSums& s = sums_.host<TensorSums>(*places.residual);
      e.residual_rms = s.rms();
      e.residual_amax = s.amax;
    }
    if (places.logits) e.attention_logit_max = sums_.host<LogitSums>(*places.logits).largest;
    sink.on(e);
  }
}

void QuantMonitor::finish_step(std::int64_t step, Sink& sink) {
  check(!flying_.empty(), "no measured step was issued");
  const Measured m = std::move(flying_.front());
  flying_.pop_front();
  finish_operands(step, m, sink);
  finish_products(step, m, sink);
  finish_rest(step, m, sink);
  sums_.drop_oldest();
}

}  // namespace nibble
