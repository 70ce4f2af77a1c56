// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/quantize_file.h"

namespace nibble {
namespace {

/// Above this share of blocks that vanished although they held numbers, the table says so.
constexpr double kVanishedBlocksWorthALine = 0.01;

/// SQNR of a tensor; "-" where there is no signal or no number to speak of.
std::string sqnr_text(const QuantStats& s) {
  return s.sum_x2 == 0 || std::isnan(s.sqnr_db()) ? "-" : fmt::format("{:.3f}", s.sqnr_db());
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

std::string name_line(const QuantizeFile& q) {
  const QuantizeChoices& c = q.choices;
  return fmt::format("{}: {}{}, {} layout{}, {}{}\n", q.in.string(), c.format,
                     c.tile.empty() ? "" : ", tile " + c.tile, c.layout,
                     c.rht ? ", random Hadamard transform of 16" : "", c.round,
                     c.round == "rne" ? "" : fmt::format(" seed {}", q.seed));
}

std::string row(const QuantizedTensor& t, std::size_t width) {
  const QuantStats& s = t.stats;
  return fmt::format(
      "{:<{}}  {:>14} {:>11.4e} {:>8} {:>10.3e} {:>9.4f} {:>9.4f} {:>9} {:>20} {:>11.3e} {:>10.7f}\n", t.name,
      width, shape_text(t.shape), t.amax, sqnr_text(s), t.mse(), 100 * s.flushed_share(),
      100 * s.saturated_share(), fmt::format("{}/{}", s.zero_blocks, s.blocks),
      s.blocks == 0 ? "-" : fmt::format("{}/{}/{}", s.scale_max, s.scale_subnormal, s.scale_zero), s.bias(),
      s.cosine());
}

std::string remarks(const QuantizedTensor& t) {
  std::string out;
  const QuantStats& s = t.stats;
  const auto blocks_with_data = static_cast<double>(s.blocks - s.zero_blocks);
  if (blocks_with_data > 0 &&
      static_cast<double>(s.scale_zero) / blocks_with_data > kVanishedBlocksWorthALine)
    out += fmt::format(
        "warning: {}: {} of {:.0f} blocks with data decode to zero, because their scale underflows beside "
        "the "
        "tensor's amax {:.4g}: an outlier rules the tensor\n",
        t.name, s.scale_zero, blocks_with_data, t.amax);
  if (t.non_finite > 0)
    out += fmt::format("warning: {}: {} NaN or infinite elements, quantised as Transformer Engine does\n",
                       t.name, t.non_finite);
  return out;
}

}  // namespace

std::string quantize_table(const QuantizeReport& report) {
  std::size_t width = 6, quantised = 0;
  for (const QuantizedTensor& t : report.tensors) {
    width = std::max(width, t.name.size());
    quantised += t.skipped.empty() ? 1 : 0;
  }
  std::string out = name_line(report.request);
  if (quantised > 0)
    out += fmt::format("{:<{}}  {:>14} {:>11} {:>8} {:>10} {:>9} {:>9} {:>9} {:>20} {:>11} {:>10}\n",
                       "tensor", width, "shape", "amax", "SQNR dB", "MSE", "flushed %", "at max %",
                       "0 blocks", "scales max/subn/0", "bias", "cosine");
  for (const QuantizedTensor& t : report.tensors)
    if (t.skipped.empty()) out += row(t, width);
  for (const QuantizedTensor& t : report.tensors)
    if (!t.skipped.empty())
      out +=
          fmt::format("skipped  {}  {} {}: {}\n", t.name, name_of(t.dtype), shape_text(t.shape), t.skipped);
  for (const QuantizedTensor& t : report.tensors) out += remarks(t);
  if (quantised == 0) out += "no tensor was quantised\n";
  if (!report.request.out.empty()) out += fmt::format("wrote {}\n", report.request.out.string());
  return out;
}

Json quantize_json(const QuantizeReport& report) {
  const QuantizeFile& q = report.request;
  Json tensors = Json::array(), skipped = Json::array();
  for (const QuantizedTensor& t : report.tensors) {
    Json j = {{"name", t.name}, {"dtype", std::string(name_of(t.dtype))}, {"shape", t.shape}};
    if (!t.skipped.empty()) {
      j["reason"] = t.skipped;
      skipped.push_back(j);
      continue;
    }
    const QuantStats& s = t.stats;
    j["rows"] = t.rows;
    j["cols"] = t.cols;
    j["amax"] = json_from_double(t.amax);
    j["sqnr_db"] = json_from_double(s.sqnr_db());
    j["mse"] = json_from_double(t.mse());
    j["flushed_share"] = json_from_double(s.flushed_share());
    j["saturated_share"] = json_from_double(s.saturated_share());
    j["blocks"] = s.blocks;
    j["zero_blocks"] = s.zero_blocks;
    j["scale_max"] = s.scale_max;
    j["scale_subnormal"] = s.scale_subnormal;
    j["scale_zero"] = s.scale_zero;
    j["scale_histogram"] = s.scale_histogram;
    j["bias"] = json_from_double(s.bias());
    j["cosine"] = json_from_double(s.cosine());
    j["non_finite"] = t.non_finite;
    tensors.push_back(j);
  }
  Json j = {{"source", q.in.string()},
            {"format", q.choices.format},
            {"layout", q.choices.layout},
            {"rht", q.choices.rht},
            {"rounding", q.choices.round},
            {"tensors", tensors},
            {"non_finite", q.choices.non_finite},
            {"skipped", skipped}};
  if (!q.choices.tile.empty()) j["tile"] = q.choices.tile;
  if (q.choices.round != "rne") j["seed"] = q.seed;
  if (!q.out.empty()) j["out"] = q.out.string();
  return j;
}

}  // namespace nibble
