// SPDX-License-Identifier: Apache-2.0
#include "validate/more_data.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "validate/statistics.h"

namespace nibble {
namespace {

std::string tokens_text(double tokens) {
  const struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  for (const auto& u : kUnits) {
    if (tokens >= u.unit) return fmt::format("{:.3g}{}", tokens / u.unit, u.name);
  }
  return fmt::format("{:.0f}", tokens);
}

double arm_tokens(const Protocol& p) { return static_cast<double>(p.steps * p.tokens_per_step); }

}  // namespace

int pairs_needed(double gap, double limit, double sigma, double confidence) {
  for (int n = 3; n <= 100; ++n) {
    if (quantile(confidence, n - 1) * sigma / std::sqrt(n) < std::abs(limit - gap)) return n;
  }
  return 0;
}

int aa_arms_needed(const WindowResult& w, const NoiseRule& rule, int pairs, double confidence) {
  if (pairs >= rule.spread_from_pairs || !w.aa_rms) return 0;
  Noise noise;
  noise.measured = rule.aa_factor * *w.aa_rms, noise.floor = rule.assumed_sigma;
  for (int more = 1; more <= 20; ++more) {
    noise.degrees = w.degrees + rule.aa_degrees * more;
    if (noise.reach(confidence) / std::sqrt(pairs) < std::abs(w.limit - w.gap)) return more;
  }
  return 0;
}

std::string what_would_decide(const Protocol& p, const WindowResult& w, int pairs, bool assumed) {
  if (assumed && w.bounds[1] < w.limit) {
    return fmt::format(
        "Run the A/A arm (the candidate with another stochastic-rounding seed, {} tokens), or name the noise "
        "floor of an earlier run (--noise-floor FILE): either measures the noise.",
        tokens_text(arm_tokens(p)));
  }
  std::string text;
  if (const int n = pairs_needed(w.gap, w.limit, w.sigma, p.confidence); n > 0) {
    const int more = std::max(n - pairs, 1);
    text = fmt::format(
        "About {} pairs would decide if gap and noise stay as they are: {} more seed{}, {} tokens of "
        "training "
        "in two arms each",
        n, more, more == 1 ? "" : "s", tokens_text(2 * more * arm_tokens(p)));
  } else {
    text = "More than 100 pairs would be needed: this budget cannot tell the gap from the limit";
  }
  if (const int k = aa_arms_needed(w, p.noise, pairs, p.confidence); k > 0) {
    text += fmt::format(
        "; or {} more A/A arm{} ({} tokens, or the noise floor that earlier runs stored), which would make "
        "the "
        "noise better known",
        k, k == 1 ? "" : "s", tokens_text(k * arm_tokens(p)));
  }
  return text + fmt::format(
                    "; the smallest limit this run would pass is {:.2f} %. Longer runs alone do not "
                    "help: the evaluations of one run move together.",
                    100 * std::max(w.bounds[1], 0.0));
}

}  // namespace nibble
