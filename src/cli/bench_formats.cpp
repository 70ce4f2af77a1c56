// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "cli/cli.h"
#include "io/file.h"
#include "io/json.h"
#include "ops/health/format_anchors.h"

/// `nibble bench --formats`: the quantisation error of every format and rule beside the published one.
namespace nibble {
namespace {

struct Options {
  bool formats = false;
  std::int64_t samples = 1 << 18;
};

double decibels(double ratio) { return -10 * std::log10(ratio); }

template <class T>
ConstRealView view(const std::vector<T>& x) {
  return View<const T>(x.data(), static_cast<std::int64_t>(x.size()) / kAnchorCols, kAnchorCols);
}

/// One distribution: ours, published and the difference for every format. Returns how many are outside.
int print_distribution(Stream& stream, int d, std::int64_t rows, Json& json) {
  const AnchorDistribution& distribution = anchor_distributions()[static_cast<std::size_t>(d)];
  const std::vector<bf16> x = draw<bf16>(distribution, rows);
  fmt::print("\n{}: sum (q - x)^2 / sum x^2 of {} BF16 samples\n", distribution.name, x.size());
  fmt::print("  {:<34} {:>11} {:>11} {:>9} {:>9}\n", "format", "ours", "published", "dB", "within");
  int outside = 0;
  for (const FormatAnchor& a : format_anchors()) {
    if (a.nmse[d] == 0) continue;
    const QuantStats s = measure_format(stream, view(x), a.spec, {.seed = 9});
    const double ours = s.sum_e2 / s.sum_x2, difference = decibels(ours) - decibels(a.nmse[d]);
    const double tolerance = anchor_tolerance_db(d, a.spec.tile);
    const bool misses = std::abs(difference) > tolerance;
    outside += misses ? 1 : 0;
    fmt::print("  {:<34} {:>11.3e} {:>11.2e} {:>+9.3f} {:>9}{}\n", a.name, ours, a.nmse[d], difference,
               tolerance, misses ? "  OUTSIDE" : "");
    json["errors"].push_back({{"distribution", distribution.name},
                              {"format", a.name},
                              {"nmse", ours},
                              {"published", a.nmse[d]},
                              {"difference_db", difference},
                              {"tolerance_db", tolerance}});
  }
  return outside;
}

void print_gaussian(Stream& stream, std::int64_t rows, Json& json) {
  const std::vector<float> x = draw<float>(anchor_distributions()[0], rows);
  fmt::print("\nGaussian, {} FP32 samples: error x 1e-3, slope <x,q>/<x,x> - 1, share of zeros\n", x.size());
  fmt::print("  {:<30} {:>7} {:>9} {:>7} {:>8} | {:>8} {:>10} | {:>6} {:>9}\n", "format", "ours", "emulation",
             "paper", "dB", "slope", "published", "zeros", "published");
  for (const GaussianAnchor& a : gaussian_anchors()) {
    const QuantStats s = measure_format(stream, view(x), a.spec, {.seed = 9});
    const double ours = s.sum_e2 / s.sum_x2, slope = s.sum_xq / s.sum_x2 - 1;
    fmt::print("  {:<30} {:>7.3f} {:>9.2f} {:>7} {:>+8.3f} | {:>+7.2f}% {:>+9.2f}% | {:>5.1f}% {:>9}\n",
               a.name, 1e3 * ours, 1e3 * a.mse,
               a.published > 0 ? fmt::format("{:.1f}", 1e3 * a.published) : "-",
               decibels(ours) - decibels(a.mse), 100 * slope, 100 * a.slope, 100 * s.flushed_share(),
               a.zeros > 0 ? fmt::format("{:.1f}%", 100 * a.zeros) : "-");
    json["gaussian"].push_back({{"format", a.name},
                                {"nmse", ours},
                                {"published", a.mse},
                                {"slope", slope},
                                {"published_slope", a.slope},
                                {"zeros", s.flushed_share()},
                                {"published_zeros", a.zeros}});
  }
}

void print_unbiasedness(Stream& stream, Json& json) {
  const std::vector<float> x = draw<float>(anchor_distributions()[0], 8);
  fmt::print("\nrelative squared error of the mean of B draws ({} samples), ours / published\n", x.size());
  fmt::print("  {:<24}", "rounding");
  for (int draws : kAnchorDraws) fmt::print(" {:>19}", fmt::format("B = {}", draws));
  fmt::print("\n");
  for (const UnbiasednessAnchor& a : unbiasedness_anchors()) {
    fmt::print("  {:<24}", a.name);
    Json row{{"rounding", a.name}};
    for (int b = 0; b < 4; ++b) {
      const double error = mean_error(stream, view(x), a.spec, kAnchorDraws[b]).error;
      fmt::print(" {:>19}", fmt::format("{:.2e} / {:.1e}", error, a.error[b]));
      row["error"].push_back(error);
      row["published"].push_back(a.error[b]);
    }
    fmt::print("\n");
    json["unbiasedness"].push_back(row);
  }
}

ExitCode run(const Options& o, const std::string& json_path) {
  // Anchors of the host's arithmetic: a device gives the same bytes, which its conformance tests show.
  HostDevice host;
  Stream stream(BackendKind::Cpu, host, 0);
  const std::int64_t rows = (o.samples + kAnchorCols - 1) / kAnchorCols;
  Json json{{"samples", rows * kAnchorCols}};
  int outside = 0;
  for (int d = 0; d < kAnchorDistributions; ++d) outside += print_distribution(stream, d, rows, json);
  print_gaussian(stream, rows, json);
  print_unbiasedness(stream, json);
  json["outside"] = outside;
  if (!json_path.empty()) write_json(json_path, json);
  fmt::print("\n{} figures outside their tolerance, which is stated for 4194304 samples (--samples)\n",
             outside);
  return 0;
}

}  // namespace

Verb with_formats_bench(CLI::App& app, Verb otherwise) {
  auto o = std::make_shared<Options>();
  app.add_flag("--formats", o->formats, "Instead: the error of every format beside the published one");
  app.add_option("--samples", o->samples, "With --formats: samples a distribution, in rows of 2048")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  const CLI::Option* json = app.get_option("--json");
  return [o, json, otherwise = std::move(otherwise)] {
    return o->formats ? run(*o, json->count() > 0 ? json->as<std::string>() : std::string()) : otherwise();
  };
}

}  // namespace nibble
