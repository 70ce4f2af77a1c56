// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

/// A figure of a task as what each example gives to it. With s_i and w_i of example i,
///   r = sum s_i / sum w_i,   value = r, or exp(r) for a perplexity.
/// Accuracies have w = 1 and s = 0 or 1; perplexity s = -log-likelihood; bits per byte s in bits, w in bytes.
struct Metric {
  std::string name;
  bool higher_is_better = true;
  bool exponential = false;
  std::vector<double> sums;
  std::vector<double> weights;  ///< empty: 1 each
  bool operator==(const Metric&) const = default;

  double weight(std::size_t i) const { return weights.empty() ? 1.0 : weights[i]; }
};

struct Estimate {
  double value = 0;
  /// Of the ratio by linearisation, sqrt(n / (n - 1) sum (s_i - r w_i)^2) / sum w, times exp(r) for a
  /// perplexity. For an accuracy this is sd / sqrt(n) with n - 1, as in lm-eval. NaN with one example.
  double standard_error = 0;
};
Estimate estimate(const Metric& metric);

/// The mean over several evaluations of the same examples: of an example's s, its w being the same in all.
/// Throws Error{Runtime} when examples or weights differ.
Metric mean_of(const std::vector<Metric>& metrics);

struct PairedDifference {
  double baseline = 0, candidate = 0;
  double difference = 0;         ///< candidate - baseline
  std::array<double, 2> ci95{};  ///< percentiles 2.5 and 97.5 of the resampled difference
  std::int64_t examples = 0;
};

/// Paired bootstrap over examples: each resample draws n of the n examples with replacement, the same ones
/// for both arms, and takes the difference of the two values. Example j of resample b is number floor(n u /
/// 2^32), u being a word of Philox at (j, b) under `key`: a pure function of its arguments. It says what
/// other questions would change; another seed of training changes more. Throws Error{Runtime} when the arms'
/// examples or weights differ.
PairedDifference paired_bootstrap(const Metric& baseline, const Metric& candidate, std::uint64_t key,
                                  int resamples);

}  // namespace nibble
