// SPDX-License-Identifier: Apache-2.0
// Which numbers of a run's telemetry are drawn as maps, and in which colours.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "report/heat_map.h"
#include "report/plots.h"

namespace nibble {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
/// With more rows a map is taller than a screen, and the maps of a GEMM are folded.
constexpr std::size_t kManyRows = 40;

/// Rows in the order of the log, columns all its steps.
template <class Event>
class Grid {
 public:
  using Name = std::function<std::string(const Event&)>;

  Grid(const std::vector<Event>& events, const Name& name) : events_(events) {
    std::set<std::int64_t> steps;
    std::map<std::string, std::size_t> index;
    for (const Event& e : events) {
      steps.insert(e.step);
      const auto [it, is_new] = index.try_emplace(name(e), rows_.size());
      if (is_new) rows_.push_back(it->first);
      row_of_.push_back(it->second);
    }
    steps_.assign(steps.begin(), steps.end());
  }

  /// Empty where no value is a number.
  HeatMap map(const HeatScale& scale, const std::function<double(const Event&)>& value) const {
    HeatMap out{.scale = scale, .rows = rows_, .steps = steps_, .values = {}};
    out.values.assign(rows_.size(), std::vector<double>(steps_.size(), kNone));
    bool any = false;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const Event& e = events_[i];
      const auto column = std::lower_bound(steps_.begin(), steps_.end(), e.step) - steps_.begin();
      const double v = value(e);
      any = any || !std::isnan(v);
      out.values[row_of_[i]][static_cast<std::size_t>(column)] = v;
    }
    return any ? out : HeatMap{};
  }

 private:
  const std::vector<Event>& events_;
  std::vector<std::string> rows_;
  std::vector<std::size_t> row_of_;  ///< of each event
  std::vector<std::int64_t> steps_;
};

std::string layer_of(const QuantEvent& e) { return e.where.layer; }
std::string layer_of(const GemmEvent& e) { return e.where.layer; }

template <class Event>
std::vector<Event> of_gemm(const std::vector<Event>& events, const std::string& gemm,
                           const std::string& operand) {
  std::vector<Event> out;
  std::copy_if(events.begin(), events.end(), std::back_inserter(out),
               [&](const Event& e) { return e.where.gemm == gemm && e.where.operand == operand; });
  return out;
}

/// Of the three ends of the block scales the one where most blocks are.
double scale_ends(const QuantEvent& e) { return std::max({e.scale_max, e.scale_subnormal, e.scale_zero}); }

std::vector<HeatMap> operand_maps(const std::vector<QuantEvent>& events, const std::string& operand) {
  const Grid<QuantEvent> grid(events, [](const QuantEvent& e) { return layer_of(e); });
  return {grid.map({operand + ": SQNR", "26 dB", "10 dB", 'q', 26, 10},
                   [](const QuantEvent& e) { return e.sqnr_db; }),
          grid.map({operand + ": flushed to zero", "0 %", "40 %", 'q', 0, 0.40},
                   [](const QuantEvent& e) { return e.flushed; }),
          grid.map({operand + ": block scales at an end", "0 %", "20 %", 'q', 0, 0.20}, scale_ends),
          grid.map({operand + ": amax drift, octaves", "−2", "+2", 'd', -2, 2},
                   [](const QuantEvent& e) { return e.amax_drift; })};
}

std::string gemm_maps(const RunTelemetry& t, const std::string& gemm, std::size_t* rows) {
  std::vector<HeatMap> maps;
  const auto products = of_gemm(t.gemms, gemm, "");
  const Grid<GemmEvent> grid(products, [](const GemmEvent& e) { return layer_of(e); });
  if (!products.empty())
    maps.push_back(grid.map({"output error against BF16", "0", "0.5", 'q', 0, 0.5},
                            [](const GemmEvent& e) { return e.output_error; }));
  std::vector<std::string> operands;
  for (const QuantEvent& e : t.quant)
    if (e.where.gemm == gemm &&
        std::find(operands.begin(), operands.end(), e.where.operand) == operands.end())
      operands.push_back(e.where.operand);
  for (const std::string& operand : operands) {
    const auto events = of_gemm(t.quant, gemm, operand);
    for (HeatMap& map : operand_maps(events, operand)) maps.push_back(std::move(map));
  }
  for (const HeatMap& map : maps) *rows = std::max(*rows, map.rows.size());
  return maps.empty() ? "" : heat_grid(maps);
}

double log10_or_none(double v) { return v > 0 && std::isfinite(v) ? std::log10(v) : kNone; }

/// A map of magnitudes that span decades, coloured from the smallest to the largest.
template <class Event>
HeatMap decades(const Grid<Event>& grid, const std::string& title,
                const std::function<double(const Event&)>& value) {
  HeatMap map = grid.map({title, "", "", 'q', 0, 1}, [&](const Event& e) { return log10_or_none(value(e)); });
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const auto& row : map.values)
    for (const double v : row)
      if (!std::isnan(v)) low = std::min(low, v), high = std::max(high, v);
  if (low > high) return {};
  map.scale.at_first = low, map.scale.at_last = std::max(high, low + 1e-6);
  map.scale.low = fmt::format("{:.2g}", std::pow(10, low)),
  map.scale.high = fmt::format("{:.2g}", std::pow(10, high));
  return map;
}

}  // namespace

std::string heat_maps(const RunTelemetry& t) {
  if (t.quant.empty() && t.gemms.empty())
    return "<p class='note'>No operand was quantised, so there is no telemetry.</p>";
  std::string out;
  for (const char* gemm : {"fprop", "dgrad", "wgrad"}) {
    std::size_t rows = 0;
    const std::string maps = gemm_maps(t, gemm, &rows);
    if (maps.empty()) continue;
    if (rows <= kManyRows)
      out += fmt::format("<h3>{}</h3>{}", gemm, maps);
    else
      out += fmt::format("<details{}><summary>{}: {} layers</summary>{}</details>",
                         out.empty() ? " open" : "", gemm, rows, maps);
  }
  return out;
}

std::string weight_maps(const RunTelemetry& t) {
  std::vector<HeatMap> maps;
  if (!t.weights.empty()) {
    const Grid<WeightEvent> grid(t.weights, [](const WeightEvent& e) { return e.layer; });
    maps.push_back(decades<WeightEvent>(grid, "update / weight of a step",
                                        [](const auto& e) { return e.update_ratio; }));
    maps.push_back(grid.map({"gradients that are zero", "0 %", "20 %", 'q', 0, 0.20},
                            [](const WeightEvent& e) { return e.gradient_zeros; }));
    maps.push_back(
        grid.map({"oscillation", "1", "4", 'q', 1, 4}, [](const WeightEvent& e) { return e.oscillation; }));
  }
  if (!t.layers.empty()) {
    const Grid<LayerEvent> grid(t.layers, [](const LayerEvent& e) { return e.layer; });
    maps.push_back(decades<LayerEvent>(grid, "rms of the residual stream",
                                       [](const auto& e) { return e.residual_rms; }));
    std::vector<LayerEvent> attention;
    std::copy_if(t.layers.begin(), t.layers.end(), std::back_inserter(attention),
                 [](const LayerEvent& e) { return !std::isnan(e.attention_logit_max); });
    if (!attention.empty()) {
      const Grid<LayerEvent> heads(attention, [](const LayerEvent& e) { return e.layer; });
      maps.push_back(heads.map({"largest attention logit", "0", "50", 'q', 0, 50},
                               [](const LayerEvent& e) { return e.attention_logit_max; }));
    }
  }
  return maps.empty() ? "" : heat_grid(maps);
}

}  // namespace nibble
