// SPDX-License-Identifier: Apache-2.0
#include "validate/sequential.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "numeric/philox.h"

namespace nibble {
namespace {

constexpr std::int64_t kPaths = 40'000;
constexpr std::uint64_t kSimulationSeed = 0x6e6962626c65;
constexpr double kGrid = 0.05;

/// Two independent standard normals from 64 of the block's bits each: Box-Muller.
void two_normals(const PhiloxBlock& b, double out[2]) {
  const auto uniform = [](std::uint32_t high, std::uint32_t low) {
    const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(uniform(b.word[0], b.word[1])));
  const double angle = 2 * std::numbers::pi * uniform(b.word[2], b.word[3]);
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

/// The largest threshold that `consecutive` values in a row of one path all exceed.
double highest_sustained(const double* path, std::size_t looks, std::size_t consecutive) {
  double best = -HUGE_VAL;
  for (std::size_t first = 0; first + consecutive <= looks; ++first) {
    best = std::max(best, *std::min_element(path + first, path + first + consecutive));
  }
  return best;
}

}  // namespace

std::vector<double> simulate_null(const std::vector<double>& looks, std::int64_t paths, std::uint64_t seed,
                                  const NullModel& model) {
  const std::size_t n = looks.size();
  std::vector<double> keep(n, 0);
  for (std::size_t i = 1; i < n; ++i) {
    check(looks[i] > looks[i - 1], "looks must ascend: look {} is at {}, after {}", i, looks[i],
          looks[i - 1]);
    keep[i] = std::pow(model.jitter_correlation, (looks[i] - looks[i - 1]) / model.jitter_distance);
  }
  const double offset_sd = std::sqrt(model.offset_share), jitter_sd = std::sqrt(1 - model.offset_share);
  std::vector<double> gaps(static_cast<std::size_t>(paths) * n);
  std::vector<double> normal(n + 2);
  for (std::int64_t path = 0; path < paths; ++path) {
    for (std::size_t i = 0; i <= n; i += 2) {
      two_normals(philox({seed}, {{static_cast<std::uint32_t>(i / 2), static_cast<std::uint32_t>(path)}}),
                  &normal[i]);
    }
    double jitter = 0;
    for (std::size_t i = 0; i < n; ++i) {
      jitter = keep[i] * jitter + std::sqrt(1 - keep[i] * keep[i]) * normal[i + 1];
      gaps[static_cast<std::size_t>(path) * n + i] = offset_sd * normal[0] + jitter_sd * jitter;
    }
  }
  return gaps;
}

double abort_multiplier(const std::vector<double>& looks, int consecutive, double false_alarm,
                        const NullModel& model) {
  check(consecutive >= 1 && false_alarm > 0 && false_alarm < 1,
        "the abort rule needs consecutive >= 1 and 0 < false_alarm < 1 (got {} and {})", consecutive,
        false_alarm);
  const auto k = static_cast<std::size_t>(consecutive);
  if (looks.size() < k) return 0;
  const auto gaps = simulate_null(looks, kPaths, kSimulationSeed, model);
  std::vector<double> highest(kPaths);
  for (std::size_t path = 0; path < highest.size(); ++path) {
    highest[path] = highest_sustained(&gaps[path * looks.size()], looks.size(), k);
  }
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil((1 - false_alarm) * kPaths)) - 1;
  std::nth_element(highest.begin(), highest.begin() + rank, highest.end());
  return std::ceil(highest[static_cast<std::size_t>(rank)] / kGrid) * kGrid;
}

double AbortMonitor::threshold(double sigma) const {
  return std::max(rule_.limit, rule_.sigma_multiplier * sigma);
}

bool AbortMonitor::push(std::int64_t step, double gap, double sigma) {
  if (fired() || step < rule_.first_step) return fired();
  above_ = gap <= threshold(sigma) ? 0 : above_ + 1;
  if (above_ >= rule_.consecutive) fired_at_ = step;
  return fired();
}

}  // namespace nibble
