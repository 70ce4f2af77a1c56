// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/integrity.h"
#include "report/report.h"
#include "telemetry/alarms.h"
#include "telemetry/console_sink.h"

namespace nibble {
namespace {

constexpr std::size_t kSpeedWarmup = 10;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string upper(std::string text) {
  for (auto& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// Up to the first full stop that ends a sentence; those inside numbers are followed by a digit.
std::string first_sentence(const std::string& text) {
  const auto end = text.find(". ");
  return end == std::string::npos ? text : text.substr(0, end + 1);
}

std::string gap_line(const Verdict& v) {
  std::string out = std::isfinite(v.relative_gap) ? fmt::format("gap {:+.2f} %", 100 * v.relative_gap)
                                                  : std::string("gap unknown");
  if (std::isfinite(v.gap_ci95[0]) && std::isfinite(v.gap_ci95[1]))
    out += fmt::format(", 95 % interval [{:+.2f}, {:+.2f}] %", 100 * v.gap_ci95[0], 100 * v.gap_ci95[1]);
  return out + fmt::format(", limit {:.2f} %, noise {:.2f} % ({})", 100 * v.limit, 100 * v.noise_floor,
                           v.noise_source);
}

}  // namespace

std::vector<SpeedRow> speed_rows(const std::vector<ArmSeries>& arms) {
  std::vector<SpeedRow> out;
  for (const auto& a : arms) {
    std::vector<double> ms, speed;
    // A run shorter than the warm-up is all there is to measure.
    const std::size_t first = a.train.size() > kSpeedWarmup ? kSpeedWarmup : 0;
    for (std::size_t i = first; i < a.train.size(); ++i) {
      ms.push_back(a.train[i].step_ms), speed.push_back(a.train[i].tokens_per_s);
    }
    out.push_back({a.name, median(speed), median(ms)});
  }
  return out;
}

std::string summary_text(const Verdict& v) {
  std::string out = fmt::format("\nVERDICT  {}  ({})\n  {}\n", upper(name(v.outcome)), v.label, v.reason);
  out += "  " + gap_line(v) + "\n";
  out += fmt::format("  validation loss: {} {:.5f}, {} {:.5f}", v.baseline.recipe, v.baseline.loss,
                     v.candidate.recipe, v.candidate.loss);
  if (v.candidate_aa) out += fmt::format(", A/A {:.5f}", v.candidate_aa->loss);
  out += '\n';
  if (v.two_arm_gap) {
    out += fmt::format("  mean of both candidate arms {:+.2f} %: {} the noise\n", 100 * *v.two_arm_gap,
                       v.inside_noise ? "inside" : "outside");
  }
  out += fmt::format("  about: {}\n", v.claim);
  if (!v.more_data.empty()) out += "  " + v.more_data + "\n";
  int warnings = 0;
  for (const AlarmGroup& a : grouped(v.alarms)) {
    warnings += a.first.severity == Severity::Warning ? 1 : 0;
    if (a.first.severity != Severity::Fault) continue;
    out += fmt::format("  FAULT {}{}: {}\n",
                       a.arms.empty() ? "" : fmt::format("{}, ", fmt::join(a.arms, " and ")), a.when(),
                       a.first.text);
  }
  if (warnings > 0) out += fmt::format("  {} warning{} in the report\n", warnings, warnings == 1 ? "" : "s");
  if (!v.caveats.empty()) {
    out += "What this run cannot say (more in the report)\n";
    for (const auto& c : v.caveats) out += "  - " + first_sentence(c) + "\n";
  }
  return out;
}

std::string summary_text(const ReportData& d) {
  const std::string banner = change_banner(d);
  return (banner.empty() ? "" : banner + "\n") + summary_text(d.verdict);
}

std::string summary_markdown(const ReportData& d) {
  const Verdict& v = d.verdict;
  const std::string banner = change_banner(d);
  std::string out = banner.empty() ? "" : "**" + banner + "**\n\n";
  out += fmt::format("## {}: {}\n\n{}\n\n", upper(name(v.outcome)),
                     d.context.title.empty() ? d.protocol.name : d.context.title, v.reason);
  out +=
      "| window | steps | evaluations | gap | 95 % interval | limit | noise | outcome "
      "|\n|---|---|---|---|---|---|---|---|\n";
  for (const auto& w : v.windows) {
    out += fmt::format("| {} | {}-{} | {} | {:+.2f} % | {:+.2f} to {:+.2f} % | {:.2f} % | {:.2f} % | {} |\n",
                       w.name, w.after_step + 1, w.last_step, w.evaluations, 100 * w.gap, 100 * w.ci95[0],
                       100 * w.ci95[1], 100 * w.limit, 100 * w.sigma, name(w.outcome));
  }
  out += "\n| arm | recipe | validation loss | ms a step | tokens/s |\n|---|---|---|---|---|\n";
  const auto speeds = speed_rows(d.arms);
  for (std::size_t i = 0; i < d.arms.size(); ++i) {
    const auto& a = d.arms[i];
    out += fmt::format("| {} | {} | {:.5f} | {:.0f} | {} |\n", a.name, a.header.recipe,
                       a.evals.empty() ? std::nan("") : a.evals.back().loss, speeds[i].step_ms,
                       short_count(speeds[i].tokens_per_s));
  }
  out += fmt::format("\nClaim: {}. Noise: {}. Protocol `{}`.\n\n`{}`\n", v.claim, v.noise_source,
                     v.protocol_hash, d.context.command);
  for (const auto& c : v.caveats) out += "\n- " + c;
  return out + "\n";
}

}  // namespace nibble
