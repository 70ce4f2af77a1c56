// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "base/error.h"
#include "validate/forecast.h"

namespace nibble {
namespace {

using Vec = std::array<double, 3>;
using Mat = std::array<Vec, 3>;

constexpr double kSizeUnit = 1e8, kLengthUnit = 100;
constexpr std::size_t kFewestRuns = 5;
/// The ladder's own scatter, in which the noise of a pilot is measured.
constexpr double kLadderScatter = 0.075;
constexpr double kRunOn = 0.15;  ///< sd of ln gap a factor e beyond the fitted lengths
/// Held-out runs up to 19 times larger than the largest fitted one lay inside their intervals; beyond that
/// nothing was tested. In length the flattening shows within a factor two.
constexpr double kFarSize = 20, kFarLength = 2;

Vec features(double parameters, double tokens) {
  return {1, std::log(parameters / kSizeUnit), std::log(tokens / parameters / kLengthUnit)};
}

double quadratic(const Mat& m, const Vec& x) {
  double sum = 0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) sum += x[i] * m[i][j] * x[j];
  return sum;
}

Vec times(const Mat& m, const Vec& x) {
  Vec out{};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) out[i] += m[i][j] * x[j];
  return out;
}

double dot(const Vec& a, const Vec& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

/// Inverse of a symmetric positive matrix by Gauss and Jordan with pivots; the unknowns are centred and of
/// order one, so three of them need no more care.
Mat inverse(Mat m) {
  Mat out{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
  for (int c = 0; c < 3; ++c) {
    int pivot = c;
    for (int r = c + 1; r < 3; ++r)
      if (std::abs(m[r][c]) > std::abs(m[pivot][c])) pivot = r;
    check_usage(std::abs(m[pivot][c]) > 1e-9,
                "these runs do not tell size from length: vary both (two sizes, and two lengths of each)");
    std::swap(m[c], m[pivot]), std::swap(out[c], out[pivot]);
    const double scale = 1 / m[c][c];
    for (int j = 0; j < 3; ++j) m[c][j] *= scale, out[c][j] *= scale;
    for (int r = 0; r < 3; ++r) {
      if (r == c) continue;
      const double f = m[r][c];
      for (int j = 0; j < 3; ++j) m[r][j] -= f * m[c][j], out[r][j] -= f * out[c][j];
    }
  }
  return out;
}

/// 1 / w of a run: what its noise leaves of its weight.
double weight(const GapRun& run) {
  const double relative = run.noise / run.gap / kLadderScatter;
  return 1 / (1 + relative * relative);
}

/// Adds runs to precision `lambda` and mean `m0` with `nu0` degrees and sum of squares `ss0`.
GapLaw add_runs(const Mat& lambda0, const Vec& m0, double nu0, double ss0, const std::vector<GapRun>& runs) {
  Mat lambda = lambda0;
  Vec right = times(lambda0, m0);
  for (const GapRun& r : runs) {
    check_usage(usable(r),
                "run {} ({} parameters, {} tokens, gap {}) cannot be fitted: sizes and gap must be positive, "
                "and the gap above its noise",
                r.name, r.parameters, r.tokens, r.gap);
    const Vec x = features(r.parameters, r.tokens);
    const double w = weight(r), y = std::log(r.gap);
    for (int i = 0; i < 3; ++i) {
      right[i] += w * y * x[i];
      for (int j = 0; j < 3; ++j) lambda[i][j] += w * x[i] * x[j];
    }
  }
  GapLaw law;
  law.covariance = inverse(lambda);
  law.mean = times(law.covariance, right);
  Vec moved{};
  for (int i = 0; i < 3; ++i) moved[i] = law.mean[i] - m0[i];
  double ss = ss0 + quadratic(lambda0, moved);
  for (const GapRun& r : runs) {
    const double e = std::log(r.gap) - dot(features(r.parameters, r.tokens), law.mean);
    ss += weight(r) * e * e;
    law.range.add(r.parameters, r.tokens);
  }
  law.degrees = nu0 + static_cast<double>(runs.size());
  law.scatter = std::sqrt(ss / law.degrees);
  law.runs = runs.size();
  return law;
}

/// How far outside [low, high], as a logarithm; 0 inside.
double outside(double value, const double (&range)[2]) {
  return std::max({0.0, value - range[1], range[0] - value});
}

}  // namespace

void FitRange::add(double n, double tokens) {
  const double size = std::log(n), length = std::log(tokens / n);
  parameters[0] = std::min(parameters[0], size), parameters[1] = std::max(parameters[1], size);
  per_parameter[0] = std::min(per_parameter[0], length),
  per_parameter[1] = std::max(per_parameter[1], length);
}

void FitRange::add(const FitRange& other) {
  parameters[0] = std::min(parameters[0], other.parameters[0]);
  parameters[1] = std::max(parameters[1], other.parameters[1]);
  per_parameter[0] = std::min(per_parameter[0], other.per_parameter[0]);
  per_parameter[1] = std::max(per_parameter[1], other.per_parameter[1]);
}

bool usable(const GapRun& r) {
  return r.parameters > 0 && r.tokens > 0 && std::isfinite(r.parameters) && std::isfinite(r.tokens) &&
         std::isfinite(r.gap) && std::isfinite(r.noise) && r.gap > 0 && r.gap > r.noise;
}

GapLaw GapLaw::fit(const std::vector<GapRun>& runs) {
  check_usage(runs.size() >= kFewestRuns,
              "a law with three constants and an interval needs {} runs at least, got {}", kFewestRuns,
              runs.size());
  return add_runs({}, {}, -3, 0, runs);
}

GapLaw GapLaw::update(const GapLaw& prior, const std::vector<GapRun>& runs) {
  GapLaw law = add_runs(inverse(prior.covariance), prior.mean, prior.degrees,
                        prior.degrees * prior.scatter * prior.scatter, runs);
  law.range.add(prior.range);
  law.runs += prior.runs;
  return law;
}

GapLaw GapLaw::for_another_setup() const {
  constexpr Vec kSd{0.25, 0.05, 0.05};
  GapLaw law = *this;
  for (int i = 0; i < 3; ++i) law.covariance[i][i] += kSd[i] * kSd[i] / (scatter * scatter);
  return law;
}

GapForecast GapLaw::predict(double parameters, double tokens, double confidence) const {
  check_usage(parameters > 0 && tokens > 0, "a forecast needs parameters and tokens, got {} and {}",
              parameters, tokens);
  const Vec x = features(parameters, tokens);
  const double size = outside(std::log(parameters), range.parameters);
  const double length = outside(std::log(tokens / parameters), range.per_parameter);
  GapForecast f;
  const double centre = dot(x, mean);
  f.gap = std::exp(centre);
  f.sd = std::sqrt(scatter * scatter * (1 + quadratic(covariance, x)) + kRunOn * kRunOn * length * length);
  f.degrees = degrees;
  const double reach_of =
      boost::math::quantile(boost::math::students_t(degrees), (1 + confidence) / 2) * f.sd;
  f.interval = {std::exp(centre - reach_of), std::exp(centre + reach_of)};
  // A thousandth of slack: a run at the edge of the range is inside it.
  if (size > 1e-3) {
    f.reach = std::exp(size) > kFarSize ? Reach::TooFar : Reach::Beyond;
    f.warnings.push_back(fmt::format(
        "{:.3g} parameters are {:.1f} times outside the sizes that were fitted ({:.3g} to {:.3g}).",
        parameters, std::exp(size), std::exp(range.parameters[0]), std::exp(range.parameters[1])));
  }
  if (length > 1e-3) {
    if (std::exp(length) > kFarLength)
      f.reach = Reach::TooFar;
    else
      f.reach = std::max(f.reach, Reach::Beyond);
    f.warnings.push_back(fmt::format(
        "{:.3g} tokens a parameter are {:.1f} times outside what was fitted ({:.3g} to {:.3g}){}.",
        tokens / parameters, std::exp(length), std::exp(range.per_parameter[0]),
        std::exp(range.per_parameter[1]),
        std::log(tokens / parameters) > range.per_parameter[1]
            ? "; on the public ladder the gap flattened there, so the law rather says too much"
            : ""));
  }
  return f;
}

}  // namespace nibble
