// SPDX-License-Identifier: Apache-2.0
#include "eval/metric.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "numeric/philox.h"

namespace nibble {
namespace {

double shaped(const Metric& m, double ratio) { return m.exponential ? std::exp(ratio) : ratio; }

void require_same_examples(const Metric& a, const Metric& b) {
  check(a.name == b.name && a.exponential == b.exponential && a.sums.size() == b.sums.size() &&
            a.weights == b.weights,
        "{} and {} were not measured on the same examples ({} and {}): were task files changed in between?",
        a.name, b.name, a.sums.size(), b.sums.size());
}

/// Value at share q of sorted numbers, linear between neighbours.
double percentile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace

Estimate estimate(const Metric& m) {
  check(!m.sums.empty(), "{} has no examples", m.name);
  double sum = 0, weight = 0;
  for (std::size_t i = 0; i < m.sums.size(); ++i) sum += m.sums[i], weight += m.weight(i);
  const double ratio = sum / weight, n = static_cast<double>(m.sums.size());
  double squares = 0;
  for (std::size_t i = 0; i < m.sums.size(); ++i) {
    const double rest = m.sums[i] - ratio * m.weight(i);
    squares += rest * rest;
  }
  const double error =
      n > 1 ? std::sqrt(n / (n - 1) * squares) / weight : std::numeric_limits<double>::quiet_NaN();
  return {shaped(m, ratio), m.exponential ? error * std::exp(ratio) : error};
}

Metric mean_of(const std::vector<Metric>& metrics) {
  check(!metrics.empty(), "there is no evaluation to average");
  Metric mean = metrics.front();
  for (std::size_t k = 1; k < metrics.size(); ++k) {
    require_same_examples(mean, metrics[k]);
    for (std::size_t i = 0; i < mean.sums.size(); ++i) mean.sums[i] += metrics[k].sums[i];
  }
  for (double& sum : mean.sums) sum /= static_cast<double>(metrics.size());
  return mean;
}

PairedDifference paired_bootstrap(const Metric& baseline, const Metric& candidate, std::uint64_t key,
                                  int resamples) {
  require_same_examples(baseline, candidate);
  check(resamples > 0, "a bootstrap needs resamples, not {}", resamples);
  PairedDifference out{.baseline = estimate(baseline).value, .candidate = estimate(candidate).value};
  out.difference = out.candidate - out.baseline;
  const auto n = static_cast<std::uint32_t>(baseline.sums.size());
  out.examples = n;
  std::vector<double> differences;
  for (std::uint32_t b = 0; b < static_cast<std::uint32_t>(resamples); ++b) {
    double sum_base = 0, sum_cand = 0, weight = 0;
    PhiloxBlock block;
    for (std::uint32_t j = 0; j < n; ++j) {
      if (j % 4 == 0) block = philox({key}, {{j / 4, b, 0, 0}});
      const std::size_t i = static_cast<std::size_t>(std::uint64_t{block.word[j % 4]} * n >> 32);
      sum_base += baseline.sums[i], sum_cand += candidate.sums[i], weight += baseline.weight(i);
    }
    differences.push_back(shaped(candidate, sum_cand / weight) - shaped(baseline, sum_base / weight));
  }
  std::sort(differences.begin(), differences.end());
  out.ci95 = {percentile(differences, 0.025), percentile(differences, 0.975)};
  return out;
}

}  // namespace nibble
