// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

/// How a number becomes one of nine colours.
struct HeatScale {
  std::string title;
  std::string low, high;             ///< words under the legend's ends
  char palette = 'q';                ///< q: sequential, strong is bad; d: diverging around the middle
  double at_first = 0, at_last = 1;  ///< values of the first and the last colour
};

/// A grid of numbers: a row a layer, a column a measured step; NaN is an empty cell.
struct HeatMap {
  HeatScale scale;
  std::vector<std::string> rows;
  std::vector<std::int64_t> steps;
  std::vector<std::vector<double>> values;  ///< [row][column]
};

/// The colour of a value: 0 to 8.
int heat_level(const HeatScale& scale, double value);

/// One map as a figure with its title, legend, names of rows and the first and last step; cells of one colour
/// are one path, so that a map of a thousand cells costs a few thousand bytes. Names that do not fit are left
/// out evenly.
std::string heat_figure(const HeatMap& map);

/// Figures beside one another as far as the page is wide.
std::string heat_grid(const std::vector<HeatMap>& maps);

}  // namespace nibble
