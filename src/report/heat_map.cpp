// SPDX-License-Identifier: Apache-2.0
#include "report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/svg.h"
#include "telemetry/console_sink.h"

namespace nibble {
namespace {

constexpr int kLevels = 9;
constexpr double kLeft = 96, kWidth = 340, kTop = 6, kLine = 11.5;

double row_height(std::size_t rows) { return std::clamp(230.0 / static_cast<double>(rows), 2.0, 14.0); }

/// "blocks.12.mlp.down" -> "12.mlp.down".
std::string short_layer(const std::string& layer) {
  constexpr std::string_view kPrefix = "blocks.";
  const std::string name = layer.starts_with(kPrefix) ? layer.substr(kPrefix.size()) : layer;
  return name.size() <= 15 ? name : "…" + name.substr(name.size() - 14);
}

/// The cells of each colour: horizontal strokes in units of a cell.
std::array<std::string, kLevels> strokes(const HeatMap& map) {
  std::array<std::string, kLevels> paths;
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const std::vector<double>& row = map.values[r];
    for (std::size_t c = 0; c < row.size();) {
      if (std::isnan(row[c])) {
        ++c;
        continue;
      }
      const int level = heat_level(map.scale, row[c]);
      std::size_t end = c + 1;
      while (end < row.size() && !std::isnan(row[end]) && heat_level(map.scale, row[end]) == level) ++end;
      paths[static_cast<std::size_t>(level)] += fmt::format("M{} {}.5h{}", c, r, end - c);
      c = end;
    }
  }
  return paths;
}

std::string legend(const HeatScale& s) {
  std::string boxes;
  for (int i = 0; i < kLevels; ++i) boxes += fmt::format("<i class='{}{}'></i>", s.palette, i);
  return fmt::format("<figcaption><b>{}</b><span class='ramp'>{}{}{}</span></figcaption>", escaped(s.title),
                     escaped(s.low), boxes, escaped(s.high));
}

std::string row_names(const HeatMap& map, double height) {
  const auto every = static_cast<std::size_t>(std::ceil(kLine / height));
  std::string out;
  for (std::size_t r = 0; r < map.rows.size(); r += every)
    out += fmt::format("<text x='{}' y='{:.1f}' class='t-tick' text-anchor='end'>{}</text>", kLeft - 6,
                       kTop + height * static_cast<double>(r) + std::max(height * 0.5 + 3.5, 8.0),
                       escaped(short_layer(map.rows[r])));
  return out;
}

}  // namespace

int heat_level(const HeatScale& s, double value) {
  const double t = (value - s.at_first) / (s.at_last - s.at_first);
  if (std::isnan(t)) return kLevels - 1;
  return static_cast<int>(std::clamp(std::floor(t * kLevels), 0.0, kLevels - 1.0));
}

std::string heat_figure(const HeatMap& map) {
  const double height = row_height(map.rows.size());
  const double cell = (kWidth - kLeft) / static_cast<double>(std::max<std::size_t>(map.steps.size(), 1));
  const double bottom = kTop + height * static_cast<double>(map.rows.size());
  std::string cells;
  const auto paths = strokes(map);
  for (int level = 0; level < kLevels; ++level)
    if (!paths[static_cast<std::size_t>(level)].empty())
      cells += fmt::format("<path class='{}{}' d='{}'/>", map.scale.palette, level,
                           paths[static_cast<std::size_t>(level)]);
  const auto step = [](std::int64_t s) {
    return s < 10000 ? fmt::format("{}", s) : short_count(static_cast<double>(s));
  };
  std::string axis;
  if (!map.steps.empty())
    axis = fmt::format(
        "<text x='{}' y='{:.1f}' class='t-tick'>step {}</text><text x='{}' y='{:.1f}' class='t-tick' "
        "text-anchor='end'>{}</text>",
        kLeft, bottom + 13, step(map.steps.front()), kWidth, bottom + 13, step(map.steps.back()));
  return fmt::format(
      "<figure>{}<svg class='plot map' viewBox='0 0 {} {:.0f}' role='img' aria-label='{} by layer and step'>"
      "{}<g class='{}' transform='translate({} {}) scale({:.4f} {:.3f})'>{}</g>{}</svg></figure>",
      legend(map.scale), kWidth, bottom + 18, attribute(map.scale.title), row_names(map, height),
      height > 6 ? "cells gaps" : "cells", kLeft, kTop, cell, height, cells, axis);
}

std::string heat_grid(const std::vector<HeatMap>& maps) {
  std::string out = "<div class='maps'>";
  for (const HeatMap& map : maps)
    if (!map.rows.empty()) out += heat_figure(map);
  return out + "</div>";
}

}  // namespace nibble
