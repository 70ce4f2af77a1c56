// SPDX-License-Identifier: Apache-2.0
#include "telemetry/alarms.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "telemetry/statistics.h"

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

std::vector<double> RecentAmax::push(std::int64_t step, double amax) {
  while (seen_.size() > 1 && 2 * seen_.front().first < step) seen_.pop_front();
  std::vector<double> recent;
  for (const auto& [unused, octaves] : seen_) recent.push_back(octaves);
  if (!(amax > 0) || !std::isfinite(amax)) return recent;
  seen_.emplace_back(step, std::log2(amax));
  if (seen_.size() > most_) seen_.pop_front();
  return recent;
}

double AmaxDrift::push(std::int64_t step, double amax) {
  const std::vector<double> recent = recent_.push(step, amax);
  if (recent.empty() || !(amax > 0) || !std::isfinite(amax)) return 0;
  return std::log2(amax) -
         std::accumulate(recent.begin(), recent.end(), 0.0) / static_cast<double>(recent.size());
}

std::string alarm_subject(const std::string& rule, const OperandName& w) {
  if (rule.starts_with("amax_")) return fmt::format("amax|{}|{}", w.layer, tensor_of(w.operand));
  return fmt::format("{}|{}|{}|{}", rule, w.layer, w.gemm, w.operand);
}

std::string AlarmGroup::when() const {
  if (last_step == first.step) return fmt::format("step {}", first.step);
  return fmt::format("steps {} to {}, {} times", first.step, last_step, count);
}

std::vector<AlarmGroup> grouped(const std::vector<AlarmEvent>& alarms) {
  std::vector<AlarmGroup> out;
  std::map<std::string, std::size_t> places;
  for (const AlarmEvent& a : alarms) {
    const std::string subject = fmt::format("{}|{}", name(a.severity), alarm_subject(a.rule, a.where));
    const auto [it, is_new] = places.try_emplace(subject, out.size());
    if (is_new) out.push_back({.first = a, .last_step = a.step});
    AlarmGroup& group = out[it->second];
    ++group.count;
    group.last_step = std::max(group.last_step, a.step);
    if (!a.arm.empty() && std::find(group.arms.begin(), group.arms.end(), a.arm) == group.arms.end())
      group.arms.push_back(a.arm);
  }
  return out;
}

void AlarmMonitor::judge(const QuantEvent& e, const Finding& f, std::vector<AlarmEvent>& out) {
  Spoken& spoken = spoken_[alarm_subject(f.rule, e.where)];
  if (spoken.step != e.step) spoken = {.step = e.step, .now = false, .before = spoken.now};
  if (f.bad && !spoken.now && !spoken.before) {
    AlarmEvent alarm{e.step, Severity::Warning, f.rule, e.where,
                     fmt::format("{}: {}; {}", label(e.where), f.text, f.remedy)};
    alarm.value = f.value;
    alarm.threshold = f.threshold;
    alarm.remedy = f.remedy;
    out.push_back(std::move(alarm));
  }
  spoken.now = spoken.now || f.bad;
}

std::vector<AlarmEvent> AlarmMonitor::inspect(const QuantEvent& e) {
  const std::string keep = fmt::format("keep it in bf16 (precision.keep_bf16 = [\"{}\"])", e.where.layer);
  std::vector<AlarmEvent> out;
  const bool settled = ++measured_[label(e.where)] > rules_.drift_after;
  const AlarmRules& r = rules_;
  const std::vector<double> recent =
      recent_.try_emplace(label(e.where), r.rise_window).first->second.push(e.step, e.amax);
  const bool has_octave = e.amax > 0 && std::isfinite(e.amax);
  const double risen =
      recent.empty() || !has_octave ? 0 : std::log2(e.amax) - *std::min_element(recent.begin(), recent.end());
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
                     risen, recent.size() + 1, r.rise_octaves),
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

}  // namespace nibble
