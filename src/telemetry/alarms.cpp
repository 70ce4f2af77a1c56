// SPDX-License-Identifier: Apache-2.0
#include "telemetry/alarms.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace nibble {
namespace {

std::string label(const OperandName& w) {
  std::string text = w.layer + " " + w.gemm;
  if (!w.operand.empty()) text += " operand " + w.operand;
  return text;
}

}  // namespace

double explained_gemm_error(double sqnr_a_db, double sqnr_b_db) {
  return std::sqrt(std::pow(10.0, -sqnr_a_db / 10) + std::pow(10.0, -sqnr_b_db / 10));
}

std::optional<AlarmEvent> check_gemm(const GemmCheck& c, const AlarmRules& rules) {
  const double explained = explained_gemm_error(c.sqnr_a_db, c.sqnr_b_db);
  const double fault = std::max(rules.gemm_fault * explained, rules.gemm_fault_floor);
  const double warning = std::max(rules.gemm_warning * explained, rules.gemm_warning_floor);
  // Written so that a NaN error counts as a fault.
  const bool is_fault = !(c.relative_error <= fault), is_unexplained = c.relative_error > warning;
  if (!is_fault && !is_unexplained && c.relative_error <= rules.output_error) return {};
  const bool mismatch = is_fault || is_unexplained;
  AlarmEvent alarm{c.step, is_fault ? Severity::Fault : Severity::Warning,
                   mismatch ? "gemm_mismatch" : "output_error", c.where, ""};
  alarm.value = c.relative_error;
  alarm.threshold = is_fault ? fault : is_unexplained ? warning : rules.output_error;
  alarm.remedy =
      is_fault         ? "the two operands do not belong together (different rotation signs, layout or scale)"
      : is_unexplained ? "look at cancellation in this product and at the layer's telemetry"
                       : fmt::format("keep it in bf16 (precision.keep_bf16 = [\"{}\"])", c.where.layer);
  alarm.text = fmt::format(
      "{}: the quantised product differs from the BF16 product by {:.2f} of its norm (threshold {:.2f}), "
      "where "
      "the operands' rounding ({:.1f} and {:.1f} dB) explains {:.2f}; {}",
      label(c.where), c.relative_error, *alarm.threshold, c.sqnr_a_db, c.sqnr_b_db, explained, alarm.remedy);
  return alarm;
}

std::optional<AlarmEvent> check_operand(const OperandCheck& c, const AlarmRules& rules) {
  AlarmEvent alarm{c.step, Severity::Fault, "", c.where, ""};
  // Written so that a NaN counts as a fault.
  if (!(std::abs(c.gain - 1) <= rules.gain_fault)) {
    alarm.rule = "operand_gain";
    alarm.text = fmt::format(
        "{}: the decoded values are {:.2f} times the values that were quantised (projected onto them); the "
        "block or "
        "tensor scales do not belong to the codes",
        label(c.where), c.gain);
    return alarm;
  }
  if (c.bias && !(std::abs(*c.bias) <= rules.bias_fault + rules.bias_sigmas * c.bias_error)) {
    alarm.rule = "rounding_bias";
    alarm.text = fmt::format(
        "{}: stochastic rounding {} by {:.1f} % of the mean magnitude, {:.0f} standard errors from none; its "
        "random "
        "bits are not random",
        label(c.where), *c.bias < 0 ? "shrinks the values" : "makes the values grow", 100 * std::abs(*c.bias),
        c.bias_error > 0 ? std::abs(*c.bias) / c.bias_error : HUGE_VAL);
    return alarm;
  }
  if (c.full_codes && !(*c.full_codes >= rules.full_codes)) {
    alarm.rule = "unused_range";
    alarm.text = fmt::format(
        "{}: {:.2f} values a block reach the largest code, where every block's largest value should; the "
        "block scales "
        "are too large",
        label(c.where), *c.full_codes);
    return alarm;
  }
  return {};
}

std::optional<AlarmEvent> check_gradient_norms(const std::vector<double>& baseline,
                                               const std::vector<double>& candidate,
                                               const AlarmRules& rules) {
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(rules.gradient_steps, 1));
  if (baseline.size() < n || candidate.size() < n) return {};
  std::vector<double> ratios;
  for (std::size_t i = 0; i < n; ++i) ratios.push_back(candidate[i] / baseline[i]);
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(n / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  if (std::abs(*middle - 1) <= rules.gradient_fault) return {};
  AlarmEvent alarm{static_cast<std::int64_t>(n), Severity::Fault, "gradient_norm", {}, ""};
  alarm.text = fmt::format(
      "the gradients of the first {} steps are {:.2f} times the baseline's in norm, on the same batches and "
      "nearly the "
      "same weights; micro-batches are lost or counted twice, or the loss is scaled",
      n, *middle);
  return alarm;
}

void AlarmMonitor::judge(const QuantEvent& e, const Finding& f, std::vector<AlarmEvent>& out) {
  bool& raised = raised_[fmt::format("{}|{}|{}|{}", f.rule, e.where.layer, e.where.gemm, e.where.operand)];
  if (f.bad && !raised) {
    AlarmEvent alarm{e.step, Severity::Warning, f.rule, e.where,
                     fmt::format("{}: {}; {}", label(e.where), f.text, f.remedy)};
    alarm.value = f.value;
    alarm.threshold = f.threshold;
    alarm.remedy = f.remedy;
    out.push_back(std::move(alarm));
  }
  raised = f.bad;
}

/// Octaves of the amax above the smallest of the window, which this measurement then enters.
double AlarmMonitor::rise(const QuantEvent& e) {
  if (!(e.amax > 0) || !std::isfinite(e.amax)) return 0;
  std::deque<double>& window = window_[label(e.where)];
  const double now = std::log2(e.amax);
  const double lowest = window.empty() ? now : *std::min_element(window.begin(), window.end());
  window.push_back(now);
  if (window.size() > static_cast<std::size_t>(std::max<std::int64_t>(rules_.rise_window, 1)))
    window.pop_front();
  return now - lowest;
}

std::vector<AlarmEvent> AlarmMonitor::inspect(const QuantEvent& e) {
  const std::string keep = fmt::format("keep it in bf16 (precision.keep_bf16 = [\"{}\"])", e.where.layer);
  std::vector<AlarmEvent> out;
  const bool settled = ++measured_[label(e.where)] > rules_.drift_after;
  const double risen = rise(e);
  const AlarmRules& r = rules_;
  judge(e,
        {"amax_drift", e.amax_drift, r.drift_octaves,
         fmt::format("amax {:.3g} is {:.1f} octaves above its recent mean (threshold {:.1f})", e.amax,
                     e.amax_drift, r.drift_octaves),
         "compare with the baseline's activations, lower the learning rate, or " + keep,
         settled && e.amax_drift > r.drift_octaves},
        out);
  judge(e,
        {"amax_rise", risen, r.rise_octaves,
         fmt::format("amax {:.3g} rose by {:.1f} octaves within {} measurements (threshold {:.1f})", e.amax,
                     risen, r.rise_window, r.rise_octaves),
         "compare with the baseline's activations, lower the learning rate, or " + keep,
         settled && risen > r.rise_octaves},
        out);
  judge(e,
        {"flushed", e.flushed, r.flushed,
         fmt::format("{:.0f} % of the non-zero values decode to zero (threshold {:.0f} %)", 100 * e.flushed,
                     100 * r.flushed),
         "rotate the operand, or " + keep, e.flushed > r.flushed},
        out);
  judge(e,
        {"sqnr", e.sqnr_db, r.sqnr_db,
         fmt::format("signal to quantisation noise is {:.1f} dB (threshold {:.1f})", e.sqnr_db, r.sqnr_db),
         "look at its crest factor and block range; " + keep, e.sqnr_db < r.sqnr_db},
        out);
  judge(e,
        {"scale_max", e.scale_max, r.scale_max,
         fmt::format("{:.1f} % of the block scales sit at their largest code (threshold {:.1f} %)",
                     100 * e.scale_max, 100 * r.scale_max),
         "the tensor scale is too small for the tensor; " + keep, e.scale_max > r.scale_max},
        out);
  judge(e,
        {"scale_zero", e.scale_zero, r.scale_zero,
         fmt::format("{:.1f} % of the blocks are not zero but their scale is (threshold {:.1f} %)",
                     100 * e.scale_zero, 100 * r.scale_zero),
         "the tensor's range is wider than one tensor scale spans; scale rows, or " + keep,
         e.scale_zero > r.scale_zero},
        out);
  return out;
}

double AmaxDrift::push(double amax) {
  if (!(amax > 0) || !std::isfinite(amax)) return 0;
  const double now = std::log2(amax);
  const double drift = ema_log2_ ? now - *ema_log2_ : 0;
  ema_log2_ = ema_log2_ ? keep_ * *ema_log2_ + (1 - keep_) * now : now;
  return drift;
}

}  // namespace nibble
