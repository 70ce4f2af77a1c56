// SPDX-License-Identifier: Apache-2.0
#include "validate/statistics.h"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <map>

#include "base/error.h"

namespace nibble {
namespace {

constexpr std::size_t kFewestEvals = 3;

/// Tokens at which the running minimum of `curve` first reaches `loss`.
std::optional<double> tokens_at(const std::vector<EvalPoint>& curve, double loss) {
  if (curve.empty() || !(curve.front().loss > loss)) return {};
  double best = curve.front().loss;
  auto best_tokens = static_cast<double>(curve.front().tokens);
  for (const auto& p : curve) {
    if (!(p.loss < best)) continue;
    const auto tokens = static_cast<double>(p.tokens);
    if (p.loss <= loss) return best_tokens + (best - loss) / (best - p.loss) * (tokens - best_tokens);
    best = p.loss, best_tokens = tokens;
  }
  return {};
}

}  // namespace

std::vector<GapPoint> paired_gaps(const std::vector<EvalPoint>& baseline,
                                  const std::vector<EvalPoint>& candidate) {
  check(candidate.size() <= baseline.size(),
        "the arm has {} evaluations and its reference {}: they do not follow one protocol", candidate.size(),
        baseline.size());
  std::vector<GapPoint> gaps;
  gaps.reserve(candidate.size());
  for (std::size_t i = 0; i < candidate.size(); ++i) {
    const auto &b = baseline[i], &c = candidate[i];
    check(b.step == c.step && b.tokens == c.tokens,
          "evaluation {}: the reference arm is at step {} ({} tokens), the other at step {} ({} tokens)",
          i + 1, b.step, b.tokens, c.step, c.tokens);
    if (!std::isfinite(b.loss) || b.loss <= 0) {
      throw Error(
          ErrorKind::NonFinite,
          fmt::format("the baseline's validation loss at step {} is {}: it cannot serve as a baseline; lower "
                      "its learning rate or clip harder",
                      b.step, b.loss));
    }
    gaps.push_back({b.step, b.tokens, (c.loss - b.loss) / b.loss});
  }
  return gaps;
}

std::vector<double> gaps_in(const std::vector<GapPoint>& gaps, const DecisionWindow& window) {
  std::vector<double> out;
  for (const auto& g : gaps) {
    if (g.step > window.after_step && g.step <= window.last_step) out.push_back(g.gap);
  }
  check(out.size() >= kFewestEvals, "window '{}' (steps {} to {}) holds {} evaluations and needs {}",
        window.name, window.after_step + 1, window.last_step, out.size(), kFewestEvals);
  return out;
}

double mean(const std::vector<double>& values) {
  // Sorted first, so that the order of the pairs cannot change the last bit of a verdict.
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  double sum = 0;
  for (const double v : sorted) sum += v;
  return sum / static_cast<double>(values.size());
}

double rms(const std::vector<double>& values) {
  std::vector<double> squares;
  for (const double v : values) squares.push_back(v * v);
  return std::sqrt(mean(squares));
}

double sample_sd(const std::vector<double>& values) {
  check(values.size() >= 2, "a standard deviation needs two values, got {}", values.size());
  const double m = mean(values);
  std::vector<double> squares;
  for (const double v : values) squares.push_back((v - m) * (v - m));
  const auto n = static_cast<double>(values.size());
  return std::sqrt(mean(squares) * n / (n - 1));
}

double quantile(double probability, int degrees) {
  if (degrees == 0) return boost::math::quantile(boost::math::normal(), probability);
  return boost::math::quantile(boost::math::students_t(degrees), probability);
}

double Noise::reach(double probability) const {
  const double known = quantile(probability, 0) * floor;
  return degrees == 0 ? known : std::max(known, quantile(probability, degrees) * measured);
}

namespace {

/// Mean square of the A/A gaps that count for a window, over the arms of this run and the stored ones.
struct AaEvidence {
  double mean_square = 0;
  int arms = 0, stored = 0;
  double rms() const { return std::sqrt(mean_square); }
};

AaEvidence aa_evidence(const std::vector<PairData>& pairs, const DecisionWindow& window,
                       const NoiseRule& rule) {
  const auto end = static_cast<double>(window.last_step);
  const DecisionWindow span{window.name, static_cast<std::int64_t>(end * (1 - rule.aa_share)),
                            window.last_step};
  std::vector<double> squares;
  for (const auto& p : pairs) {
    if (p.candidate_aa.empty()) continue;
    const double r = rms(gaps_in(paired_gaps(p.candidate, p.candidate_aa), span));
    squares.push_back(r * r);
  }
  const int own = static_cast<int>(squares.size());
  if (const auto it = rule.stored_rms.find(window.name); it != rule.stored_rms.end())
    squares.insert(squares.end(), static_cast<std::size_t>(rule.stored_arms), it->second * it->second);
  if (squares.empty()) return {};
  const int all = static_cast<int>(squares.size());
  return {.mean_square = mean(squares), .arms = all, .stored = all - own};
}

Noise spread_of(const std::vector<PairData>& pairs, const DecisionWindow& window) {
  std::vector<double> means;
  for (const auto& p : pairs) means.push_back(mean(gaps_in(paired_gaps(p.baseline, p.candidate), window)));
  Noise noise;
  noise.sigma = noise.measured = sample_sd(means);
  noise.degrees = static_cast<int>(pairs.size()) - 1;
  noise.source =
      fmt::format("spread of {} pairs, Student t with {} degrees of freedom", pairs.size(), noise.degrees);
  return noise;
}

}  // namespace

Noise noise_of(const std::vector<PairData>& pairs, const DecisionWindow& window, const NoiseRule& rule) {
  const AaEvidence aa = aa_evidence(pairs, window, rule);
  Noise noise;
  if (static_cast<int>(pairs.size()) >= rule.spread_from_pairs) {
    noise = spread_of(pairs, window);
    if (aa.arms > 0) noise.aa_rms = aa.rms();
    return noise;
  }
  noise.floor = rule.assumed_sigma;
  noise.assumed = aa.arms == 0;
  if (noise.assumed) {
    noise.sigma = noise.floor;
    noise.source = fmt::format("assumed {:.2f} %: no A/A arm was run", 100 * rule.assumed_sigma);
    return noise;
  }
  noise.aa_rms = aa.rms();
  noise.measured = rule.aa_factor * aa.rms();
  noise.degrees = rule.aa_degrees * aa.arms;
  noise.sigma = std::max(noise.measured, noise.floor);
  noise.source = fmt::format(
      "{:.1f} x rms of the candidate's A/A gap ({:.2f} %{}), Student t with {} degrees of "
      "freedom; at least {:.2f} %",
      rule.aa_factor, 100 * aa.rms(), aa.stored > 0 ? fmt::format(", {} arms of them stored", aa.stored) : "",
      noise.degrees, 100 * noise.floor);
  return noise;
}

double noise_before(const NoiseRule& rule) {
  double sigma = rule.assumed_sigma;
  for (const auto& [window, rms] : rule.stored_rms) sigma = std::max(sigma, rule.aa_factor * rms);
  return sigma;
}

std::optional<double> extra_tokens(const std::vector<EvalPoint>& baseline,
                                   const std::vector<EvalPoint>& candidate) {
  if (candidate.empty() || baseline.size() < candidate.size()) return {};
  const EvalPoint &c = candidate.back(), &b = baseline[candidate.size() - 1];
  const auto total = static_cast<double>(c.tokens);
  if (c.loss == b.loss) return 0;
  if (c.loss > b.loss) {
    const auto t = tokens_at(baseline, c.loss);
    return t ? std::optional(total / *t - 1) : std::nullopt;
  }
  const auto t = tokens_at(candidate, b.loss);
  return t ? std::optional(*t / total - 1) : std::nullopt;
}

std::vector<double> centred_mean(const std::vector<double>& values, int half) {
  std::vector<double> prefix(values.size() + 1, 0);
  for (std::size_t i = 0; i < values.size(); ++i) prefix[i + 1] = prefix[i] + values[i];
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t reach = std::min({static_cast<std::size_t>(half), i, values.size() - 1 - i});
    out[i] = (prefix[i + reach + 1] - prefix[i - reach]) / static_cast<double>(2 * reach + 1);
  }
  return out;
}

}  // namespace nibble
