// SPDX-License-Identifier: Apache-2.0
#include "train/quant_monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/format_names.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string drift_key(const OperandName& w) { return w.layer + "|" + w.gemm + "|" + w.operand; }

QuantEvent event_of(std::int64_t step, const OperandName& where, const QuantSpec& spec, const QuantStats& s) {
  QuantEvent e;
  e.step = step;
  e.where = where;
  e.format = format_name(spec);
  e.amax = s.amax;
  e.flushed = s.flushed_share();
  e.saturated = s.saturated_share();
  e.zero_blocks = share(s.zero_blocks, s.blocks);
  e.scale_max = share(s.scale_max, s.blocks);
  e.scale_subnormal = share(s.scale_subnormal, s.blocks);
  e.scale_zero = share(s.scale_zero, s.blocks);
  std::copy(std::begin(s.scale_histogram), std::end(s.scale_histogram), e.scale_log2.begin());
  e.sqnr_db = s.sqnr_db();
  e.mse = s.count > 0 ? s.sum_e2 / static_cast<double>(s.count) : 0;
  e.bias = s.bias();
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

}  // namespace

std::string format_name(const QuantSpec& spec) { return arithmetic_name(spec); }

QuantMonitor::QuantMonitor(AlarmRules rules, std::vector<std::string> layers)
    : rules_(rules), layers_(std::move(layers)), monitor_(rules) {}

bool QuantMonitor::wants(const LinearInfo& linear, Gemm) {
  return layers_.empty() || std::any_of(layers_.begin(), layers_.end(),
                                        [&](const std::string& g) { return glob_match(g, linear.name); });
}

void QuantMonitor::on_operand(const LinearInfo& linear, Gemm gemm, Operand operand, const QuantSpec& spec,
                              const QuantStats& stats) {
  OperandSum& sum = operands_[{linear.position, static_cast<int>(gemm), static_cast<int>(operand)}];
  sum.name = linear.name;
  sum.block = linear.block;
  sum.spec = spec;
  sum.stats.merge(stats);
}

void QuantMonitor::on_product(const LinearInfo& linear, Gemm gemm, double relative_error) {
  ProductSum& sum = products_[{linear.position, static_cast<int>(gemm)}];
  sum.name = linear.name;
  sum.block = linear.block;
  sum.error_squared += relative_error * relative_error;
  ++sum.count;
}

double QuantMonitor::sqnr(int position, Gemm gemm, Operand operand) const {
  const auto it = operands_.find({position, static_cast<int>(gemm), static_cast<int>(operand)});
  return it == operands_.end() ? std::numeric_limits<double>::infinity() : it->second.stats.sqnr_db();
}

void QuantMonitor::recall(const QuantEvent& event) {
  drift_[drift_key(event.where)].push(event.amax);
  monitor_.inspect(event);
}

void QuantMonitor::finish_step(std::int64_t step, Sink& sink) {
  for (const auto& [key, sum] : operands_) {
    const Gemm gemm = static_cast<Gemm>(std::get<1>(key));
    const OperandName where{sum.name, sum.block, std::string(name(gemm)),
                            std::string(operand_name(gemm, static_cast<Operand>(std::get<2>(key))))};
    QuantEvent e = event_of(step, where, sum.spec, sum.stats);
    e.amax_drift = drift_[drift_key(where)].push(e.amax);
    sink.on(e);
    for (const AlarmEvent& alarm : monitor_.inspect(e)) sink.on(alarm);
    if (const auto alarm = check_operand(check_of(step, where, sum.spec, sum.stats), rules_)) sink.on(*alarm);
  }
  for (const auto& [key, sum] : products_) {
    const Gemm gemm = static_cast<Gemm>(key.second);
    const GemmCheck check{.step = step,
                          .where = {sum.name, sum.block, std::string(name(gemm)), ""},
                          .relative_error = std::sqrt(sum.error_squared / sum.count),
                          .sqnr_a_db = sqnr(key.first, gemm, Operand::A),
                          .sqnr_b_db = sqnr(key.first, gemm, Operand::B)};
    if (const auto alarm = check_gemm(check, rules_)) sink.on(*alarm);
  }
  operands_.clear();
  products_.clear();
}

}  // namespace nibble
