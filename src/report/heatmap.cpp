// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "report/plots.h"
#include "report/svg.h"

namespace nibble {
namespace {

constexpr int kMostColumns = 48;
constexpr int kLevels = 9;

struct Metric {
  const char* title;
  const char* low;  ///< words under the legend's ends
  const char* high;
  char palette;  ///< q: sequential, dark is bad; d: diverging
  double (*value)(const QuantEvent&);
  double (*badness)(double);  ///< of two values in one cell the worse is shown
  double at_first, at_last;   ///< values of the first and the last colour
  std::string (*text)(double);
};

const Metric kMetrics[] = {
    {"flushed to zero", "0 %", "40 %", 'q', [](const QuantEvent& e) { return e.flushed; },
     [](double v) { return v; }, 0, 0.40, [](double v) { return fmt::format("{:.1f} %", 100 * v); }},
    {"SQNR", "26 dB", "10 dB", 'q', [](const QuantEvent& e) { return e.sqnr_db; },
     [](double v) { return -v; }, 26, 10, [](double v) { return fmt::format("{:.1f} dB", v); }},
    {"amax drift", "-2 octaves", "+2", 'd', [](const QuantEvent& e) { return e.amax_drift; },
     [](double v) { return std::abs(v); }, -2, 2, [](double v) { return fmt::format("{:+.2f} octaves", v); }},
};

int level_of(const Metric& m, double v) {
  const double t = (v - m.at_first) / (m.at_last - m.at_first);
  if (std::isnan(t)) return kLevels - 1;
  return std::clamp(static_cast<int>(std::floor(t * kLevels)), 0, kLevels - 1);
}

/// Events of one GEMM operand as a grid: rows are layers in the model's order, columns are measured steps.
struct Grid {
  std::vector<std::string> layers;
  std::vector<std::int64_t> steps;
  std::map<std::pair<std::size_t, std::size_t>, const QuantEvent*> cells;
};

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

Grid grid_of(const std::vector<QuantEvent>& events, const Key& key) {
  Grid g;
  std::set<std::int64_t> steps;
  std::map<std::string, std::size_t> row;
  for (const auto& e : events) {
    steps.insert(e.step);
    if (Key{e.where.gemm, e.where.operand} != key) continue;
    if (row.emplace(e.where.layer, g.layers.size()).second) g.layers.push_back(e.where.layer);
  }
  g.steps.assign(steps.begin(), steps.end());
  for (const auto& e : events) {
    if (Key{e.where.gemm, e.where.operand} != key) continue;
    const auto column = std::lower_bound(g.steps.begin(), g.steps.end(), e.step) - g.steps.begin();
    g.cells[{row.at(e.where.layer), static_cast<std::size_t>(column)}] = &e;
  }
  return g;
}

/// Cells of one row of the map, neighbours of one colour drawn as one rectangle.
std::string map_row(const Grid& g, const Metric& m, std::size_t row, double x, double y, double width,
                    double height) {
  const auto columns = std::min<std::size_t>(g.steps.size(), kMostColumns);
  const double cell = width / static_cast<double>(columns);
  std::string out;
  int run_level = -1;
  std::size_t run_start = 0;
  const auto flush = [&](std::size_t end) {
    if (run_level < 0) return;
    out += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' class='{}{}'/>",
                       x + cell * static_cast<double>(run_start), y,
                       cell * static_cast<double>(end - run_start) + 0.2, height, m.palette, run_level);
  };
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t first = c * g.steps.size() / columns, last = (c + 1) * g.steps.size() / columns;
    const QuantEvent* worst = nullptr;
    for (std::size_t s = first; s < last; ++s) {
      const auto at = g.cells.find({row, s});
      if (at == g.cells.end()) continue;
      if (worst == nullptr || m.badness(m.value(*at->second)) > m.badness(m.value(*worst)))
        worst = at->second;
    }
    const int level = worst == nullptr ? -1 : level_of(m, m.value(*worst));
    if (level != run_level) {
      flush(c);
      run_level = level, run_start = c;
    }
  }
  flush(columns);
  return out;
}

std::string legend(const Metric& m, double x, double y) {
  std::string out;
  constexpr double kBox = 9;
  const double start = x + 6.2 * static_cast<double>(std::string(m.title).size()) + 76;
  out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-head'>{}</text>", x, y, m.title);
  out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick' text-anchor='end'>{}</text>", start - 5, y,
                     m.low);
  for (int i = 0; i < kLevels; ++i) {
    out += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{}' height='9' class='{}{}'/>", start + kBox * i,
                       y - 8.5, kBox, m.palette, i);
  }
  return out + fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick'>{}</text>", start + kBox * kLevels + 5,
                           y, m.high);
}

struct Layout {
  double left = 148, gap = 22, width = 1056;
  double map() const { return (width - left - 2 * gap) / 3; }
  double x(int metric) const { return left + metric * (map() + gap); }
};

std::string short_layer(const std::string& layer) {
  return layer.size() <= 22 ? layer : layer.substr(0, 9) + "…" + layer.substr(layer.size() - 12);
}

std::string operand_maps(const Grid& g, const Key& key, const Layout& l, double& y) {
  const double height = std::clamp(210.0 / static_cast<double>(g.layers.size()), 2.0, 13.0);
  const std::size_t every = static_cast<std::size_t>(std::ceil(11.5 / height));
  std::string out =
      fmt::format("<text x='0' y='{:.1f}' class='t-head'>{} · {}</text>", y + 11, key.first, key.second);
  y += 18;
  for (std::size_t r = 0; r < g.layers.size(); ++r) {
    if (r % every == 0) {
      out += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick' text-anchor='end'>{}</text>", l.left - 8,
                         y + std::max(height * 0.5 + 3.5, 8.0), escaped(short_layer(g.layers[r])));
    }
    for (int m = 0; m < 3; ++m)
      out += map_row(g, kMetrics[m], r, l.x(m), y, l.map(), height - (height > 6 ? 1 : 0));
    y += height;
  }
  y += 12;
  return out;
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

}  // namespace

std::string heat_maps(const std::vector<QuantEvent>& events) {
  const auto keys = operand_keys(events);
  if (keys.empty()) return "<p class='note'>No operand was quantised, so there is no telemetry.</p>";
  const Layout l;
  double y = 26;
  std::string body;
  for (int m = 0; m < 3; ++m) body += legend(kMetrics[m], l.x(m), 12);
  std::int64_t first = events.front().step, last = first;
  for (const auto& e : events) first = std::min(first, e.step), last = std::max(last, e.step);
  for (const auto& key : keys) body += operand_maps(grid_of(events, key), key, l, y);
  for (int m = 0; m < 3; ++m) {
    body += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick'>step {}</text>", l.x(m), y, first);
    body += fmt::format("<text x='{:.1f}' y='{:.1f}' class='t-tick' text-anchor='end'>{}</text>",
                        l.x(m) + l.map(), y, last);
  }
  return fmt::format(
      "<svg class='plot' viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='Telemetry by layer and "
      "step'>{}</svg>",
      l.width, y + 6, body);
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
