// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/plots.h"
#include "report/svg.h"

namespace nibble {
namespace {

/// When a layer is named as one that deserves BF16.
constexpr double kWorseThanUsual = 1.3;  ///< its output error, times the median layer's
constexpr double kMuchFlushed = 0.25, kLowSqnr = 13, kManyZeroScales = 0.01;

using Key = std::pair<std::string, std::string>;  // GEMM, operand

std::vector<Key> operand_keys(const std::vector<QuantEvent>& events) {
  std::vector<Key> keys;
  for (const char* gemm : {"fprop", "dgrad", "wgrad"}) {
    for (const auto& e : events) {
      const Key k{e.where.gemm, e.where.operand};
      if (k.first == gemm && std::find(keys.begin(), keys.end(), k) == keys.end()) keys.push_back(k);
    }
  }
  return keys;
}

std::vector<const QuantEvent*> select(const std::vector<QuantEvent>& events, const Key& key,
                                      std::int64_t step) {
  std::vector<const QuantEvent*> out;
  for (const auto& e : events) {
    if (e.step == step && Key{e.where.gemm, e.where.operand} == key) out.push_back(&e);
  }
  return out;
}

std::string histogram(const std::array<double, 16>& first, const std::array<double, 16>& last) {
  double top = 1e-12;
  for (int i = 0; i < 16; ++i) top = std::max({top, first[i], last[i]});
  std::string out =
      "<svg width='208' height='34' viewBox='0 0 208 34' role='img' aria-label='block scales by octave'>";
  for (int i = 0; i < 16; ++i) {
    const double a = 32 * first[i] / top, b = 32 * last[i] / top;
    out += fmt::format("<rect x='{}' y='{:.1f}' width='5' height='{:.1f}' class='bar0'/>", 13 * i, 33 - a, a);
    out += fmt::format("<rect x='{}' y='{:.1f}' width='5' height='{:.1f}' class='bar'/>", 13 * i + 5.5,
                       33 - b, b);
  }
  return out + "<line x1='0' y1='33.5' x2='208' y2='33.5' class='axis'/></svg>";
}

std::array<double, 16> shares(const std::vector<QuantEvent>& events, const Key& key, std::int64_t step) {
  std::array<double, 16> sum{};
  double total = 0;
  for (const QuantEvent* e : select(events, key, step)) {
    for (int i = 0; i < 16; ++i)
      sum[i] += static_cast<double>(e->scale_log2[i]), total += static_cast<double>(e->scale_log2[i]);
  }
  for (auto& s : sum) s = total > 0 ? s / total : 0;
  return sum;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The largest reason against four bits in a layer: how many times a threshold it is, and in words.
struct Reason {
  double times = 0;
  std::string text;
};

using Reasons = std::map<std::string, Reason>;

void add(Reasons& reasons, const std::string& layer, double times, std::string text) {
  Reason& r = reasons[layer];
  if (std::isfinite(times) && times > r.times) r = {times, std::move(text)};
}

/// The middle of the measured steps: before it a model that starts moves by octaves.
template <class Event>
std::int64_t middle_step(const std::vector<Event>& events) {
  return (events.front().step + events.back().step) / 2;
}

void judge_products(const std::vector<GemmEvent>& events, Reasons& reasons) {
  if (events.empty()) return;
  const std::int64_t from = middle_step(events);
  std::map<std::string, std::map<std::string, std::vector<double>>> errors;  // by GEMM, then layer
  for (const GemmEvent& e : events)
    if (e.step >= from) errors[e.where.gemm][e.where.layer].push_back(e.output_error);
  for (const auto& [gemm, layers] : errors) {
    std::vector<double> medians;
    for (const auto& [layer, values] : layers) medians.push_back(median(values));
    const double usual = median(medians), threshold = std::max(kWorseThanUsual * usual, usual + 0.03);
    for (const auto& [layer, values] : layers) {
      const double error = median(values);
      add(reasons, layer, error / threshold,
          fmt::format("{} output error {:.2f}, {:.1f} times the median layer's", gemm, error, error / usual));
    }
  }
}

void judge_operands(const std::vector<QuantEvent>& events, Reasons& reasons) {
  if (events.empty()) return;
  const std::int64_t from = middle_step(events);
  for (const QuantEvent& e : events) {
    if (e.step < from) continue;
    const std::string what = fmt::format("{} operand {}", e.where.gemm, e.where.operand);
    add(reasons, e.where.layer, e.flushed / kMuchFlushed,
        fmt::format("{}: {:.0f} % flushed to zero at step {}", what, 100 * e.flushed, e.step));
    add(reasons, e.where.layer, kLowSqnr / e.sqnr_db,
        fmt::format("{}: SQNR {:.1f} dB at step {}", what, e.sqnr_db, e.step));
    add(reasons, e.where.layer, e.scale_zero / kManyZeroScales,
        fmt::format("{}: {:.1f} % of the block scales vanish at step {}", what, 100 * e.scale_zero, e.step));
  }
}

}  // namespace

std::string bf16_candidates(const RunTelemetry& t) {
  Reasons reasons;
  judge_products(t.gemms, reasons);
  judge_operands(t.quant, reasons);
  std::vector<std::pair<std::string, Reason>> rows;
  for (const auto& [layer, reason] : reasons)
    if (reason.times >= 1) rows.emplace_back(layer, reason);
  if (rows.empty())
    return "<p class='note'>No quantised layer stands out: none has an output error far above the median "
           "layer's, an operand that loses much to zero, or an SQNR of a few bits.</p>";
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.times > b.second.times; });
  constexpr std::size_t kMost = 12;
  const std::size_t shown = std::min(kMost, rows.size());
  std::string table =
      "<div class='scroll'><table><tr><th>layer</th><th>reason</th><th class='n'>times its "
      "threshold</th></tr>";
  std::string names;
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [layer, reason] = rows[i];
    table += fmt::format("<tr><td class='mono'>{}</td><td>{}</td><td class='n'>{:.2f}</td></tr>",
                         escaped(layer), escaped(reason.text), reason.times);
    names += fmt::format("{}&quot;{}&quot;", i == 0 ? "" : ", ", escaped(layer));
  }
  table += "</table></div>";
  if (shown < rows.size()) table += fmt::format("<p class='note'>and {} more</p>", rows.size() - shown);
  return table +
         fmt::format("<p class='note'>To try it: <code>[precision] keep_bf16 = [{}]</code></p>", names);
}

std::string worst_table(const std::vector<QuantEvent>& events) {
  if (events.empty()) return "";
  std::int64_t last = 0;
  for (const auto& e : events) last = std::max(last, e.step);
  std::vector<const QuantEvent*> rows;
  for (const auto& e : events) {
    if (e.step == last) rows.push_back(&e);
  }
  std::stable_sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return a->sqnr_db < b->sqnr_db; });
  rows.resize(std::min<std::size_t>(rows.size(), 10));
  std::string out =
      "<div class='scroll'><table><tr><th>layer</th><th>GEMM</th><th>operand</th><th>format</th><th "
      "class='n'>SQNR, dB</th>"
      "<th class='n'>flushed, %</th><th class='n'>saturated, %</th><th class='n'>amax</th><th "
      "class='n'>drift, octaves</th>"
      "<th class='n'>bias, %</th></tr>";
  for (const auto* e : rows) {
    out += fmt::format(
        "<tr><td class='mono'>{}</td><td>{}</td><td>{}</td><td>{}</td><td class='n'>{:.2f}</td><td "
        "class='n'>{:.2f}</td>"
        "<td class='n'>{:.2f}</td><td class='n'>{:.3g}</td><td class='n'>{:+.2f}</td><td "
        "class='n'>{:+.3f}</td></tr>",
        escaped(e->where.layer), e->where.gemm, e->where.operand, escaped(e->format), e->sqnr_db,
        100 * e->flushed, 100 * e->saturated, e->amax, e->amax_drift, 100 * e->bias);
  }
  return out + "</table></div>";
}

std::string scale_table(const std::vector<QuantEvent>& events) {
  if (events.empty()) return "";
  std::int64_t first = events.front().step, last = first;
  for (const auto& e : events) first = std::min(first, e.step), last = std::max(last, e.step);
  std::string out =
      "<div class='scroll'><table><tr><th>GEMM</th><th>operand</th><th class='n'>at the largest code, % "
      "(worst layer)</th>"
      "<th class='n'>subnormal, %</th><th class='n'>zero, %</th><th>block scales by octave, 2⁻⁷ to "
      "2⁸</th></tr>";
  for (const auto& key : operand_keys(events)) {
    double top = 0, subnormal = 0, zero = 0;
    for (const QuantEvent* e : select(events, key, last)) {
      top = std::max(top, e->scale_max), subnormal = std::max(subnormal, e->scale_subnormal);
      zero = std::max(zero, e->scale_zero);
    }
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td class='n'>{:.3f}</td><td class='n'>{:.3f}</td><td "
        "class='n'>{:.3f}</td><td>{}</td></tr>",
        key.first, key.second, 100 * top, 100 * subnormal, 100 * zero,
        histogram(shares(events, key, first), shares(events, key, last)));
  }
  return out + fmt::format(
                   "</table></div><div class='legend'><span><i class='box' "
                   "style='background:var(--base);opacity:.4'></i>step "
                   "{}</span><span><i class='box' style='background:var(--cand)'></i>step {}</span></div>",
                   first, last);
}

}  // namespace nibble
