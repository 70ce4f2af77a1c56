// SPDX-License-Identifier: Apache-2.0
#include "validate/compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "validate/noise_floor.h"
#include "validate/statistics.h"

namespace nibble {
namespace {

constexpr std::size_t kFewest = 3;            ///< pairs in a window
constexpr std::size_t kMeasurable = 8;        ///< pairs from which on their own correlation is used
constexpr double kPublishedNeighbour = 0.82;  ///< lag-1 autocorrelation of the gap of a pair [MLPERF51]
constexpr double kMostCorrelation = 0.95;
constexpr int kLags = 5;
constexpr double kConfidence = 0.95;

std::optional<std::int64_t> position(const CurvePoint& p, bool by_tokens) {
  return by_tokens ? p.tokens : std::optional(p.step);
}

/// The loss of `curve` at `at`, between two of its points where allowed; nothing outside or without a point.
std::optional<CurvePoint> point_at(const Curve& curve, std::int64_t at, const CompareOptions& o) {
  const CurvePoint* before = nullptr;
  for (const CurvePoint& p : curve.points) {
    const auto here = position(p, o.by_tokens);
    if (!here) continue;
    if (*here == at) return p;
    if (*here > at) {
      if (!o.interpolate || before == nullptr) return {};
      const auto left = static_cast<double>(*position(*before, o.by_tokens));
      const double t = (static_cast<double>(at) - left) / (static_cast<double>(*here) - left);
      CurvePoint between = *before;
      between.loss += t * (p.loss - before->loss);
      if (p.standard_error && before->standard_error)
        between.standard_error = std::max(*p.standard_error, *before->standard_error);
      return between;
    }
    before = &p;
  }
  return {};
}

/// Means of (se_a^2 + se_b^2) / a^2 over the window, where both files give deviations over seeds.
std::optional<PairNoise> noise_of_files(const CurveComparison& c, const std::vector<double>& variances) {
  if (variances.empty()) return {};
  double sum = 0;
  for (std::size_t i = c.window_begin; i < variances.size(); ++i) sum += variances[i];
  return PairNoise{std::sqrt(sum / static_cast<double>(variances.size() - c.window_begin)),
                   fmt::format("the files' own deviations between seeds, means of {:.0f} and {:.0f} runs",
                               c.a.runs, c.b.runs)};
}

void pair_points(CurveComparison& c, const CompareOptions& o, std::vector<double>& variances) {
  bool all_have_errors = true;
  std::size_t used_b = 0;
  for (const CurvePoint& p : c.a.points) {
    const auto at = position(p, o.by_tokens);
    const auto partner = at ? point_at(c.b, *at, o) : std::nullopt;
    if (!partner) {
      ++c.only_a;
      continue;
    }
    if (!std::isfinite(p.loss) || p.loss <= 0)
      throw Error(ErrorKind::NonFinite, fmt::format("{}: the loss at {} {} is {}: it cannot be a reference",
                                                    c.a.source, c.paired_by, *at, p.loss));
    c.rows.push_back({.at = *at,
                      .tokens = p.tokens,
                      .a = p.loss,
                      .b = partner->loss,
                      .gap = (partner->loss - p.loss) / p.loss});
    used_b += position(*partner, o.by_tokens) == at ? 1 : 0;
    if (p.standard_error && partner->standard_error) {
      const double sa = *p.standard_error / p.loss, sb = *partner->standard_error / p.loss;
      variances.push_back(sa * sa + sb * sb);
    } else {
      all_have_errors = false;
    }
  }
  c.only_b = c.b.points.size() - used_b;
  c.interpolated = used_b < c.rows.size();
  if (!all_have_errors) variances.clear();
}

void require_pairs(const CurveComparison& c, const CompareOptions& o) {
  if (c.rows.size() >= kFewest) return;
  const auto span = [&](const Curve& curve) {
    const auto first = position(curve.points.front(), o.by_tokens);
    const auto last = position(curve.points.back(), o.by_tokens);
    if (!first || !last) return std::string("no tokens in the file");
    return fmt::format("{} points from {} to {}", curve.points.size(), *first, *last);
  };
  fail_usage("only {} points of the two curves have equal {}, and a comparison needs {}. {}: {}. {}: {}. {}",
             c.rows.size(), c.paired_by, kFewest, c.a.source, span(c.a), c.b.source, span(c.b),
             o.by_tokens
                 ? "Where a file does not say its tokens, add #tokens_per_step=N; --interpolate reads the "
                   "second curve between its points"
                 : "--by tokens pairs by tokens; --interpolate reads the second curve between its points");
}

/// Lag-k autocorrelations of the values around their least-squares line.
std::vector<double> autocorrelations(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sx = (n - 1) / 2, sy = mean(values), sxx = 0, sxy = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double dx = static_cast<double>(i) - sx;
    sxx += dx * dx, sxy += dx * (values[i] - sy);
  }
  std::vector<double> rest(values.size());
  double variance = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    rest[i] = values[i] - sy - sxy / sxx * (static_cast<double>(i) - sx);
    variance += rest[i] * rest[i];
  }
  std::vector<double> out;
  if (variance <= 0) return out;
  for (int lag = 1; lag <= kLags && static_cast<std::size_t>(lag) + 2 < values.size(); ++lag) {
    double sum = 0;
    for (std::size_t i = lag; i < values.size(); ++i) sum += rest[i] * rest[i - lag];
    out.push_back(sum / variance);
  }
  return out;
}

void set_interval(CurveComparison& c, const CompareOptions& o) {
  std::vector<double> gaps;
  for (std::size_t i = c.window_begin; i < c.rows.size(); ++i) gaps.push_back(c.rows[i].gap);
  const auto n = static_cast<double>(gaps.size());
  c.gap = mean(gaps);
  c.spread = sample_sd(gaps);
  c.autocorrelation = autocorrelations(gaps);
  c.correlation_measured = gaps.size() >= kMeasurable && !c.autocorrelation.empty();
  if (c.correlation_measured) {
    // A short series shows less correlation than it has; the line took some of it too.
    const double rho = c.autocorrelation.front();
    c.correlation = std::clamp(rho + (1 + 4 * std::max(rho, 0.0)) / n, 0.0, kMostCorrelation);
  } else {
    c.correlation = kPublishedNeighbour;
  }
  c.independent = std::max(1.0, n * (1 - c.correlation) / (1 + c.correlation));
  const double own = c.spread * c.spread / c.independent, floor = c.noise.sigma * c.noise.sigma;
  c.standard_error = std::sqrt(own + floor);
  // Welch and Satterthwaite: the floor counts as known, the window's own part has n_eff - 1 degrees.
  const double nu =
      own > 0 ? (own + floor) * (own + floor) / (own * own / std::max(c.independent - 1, 1.0)) : 1e9;
  c.degrees = nu < 1000 ? std::max(1, static_cast<int>(nu)) : 0;
  const double two = quantile((1 + kConfidence) / 2, c.degrees) * c.standard_error;
  const double one = quantile(kConfidence, c.degrees) * c.standard_error;
  c.interval = {c.gap - two, c.gap + two};
  c.bounds = {c.gap - one, c.gap + one};
  if (!o.limit) return;
  c.limit = o.limit;
  c.outcome = c.bounds[1] < *o.limit   ? Outcome::Pass
              : c.bounds[0] > *o.limit ? Outcome::Fail
                                       : Outcome::Inconclusive;
}

void set_window(CurveComparison& c, const CompareOptions& o) {
  if (o.from) {
    const auto first =
        std::find_if(c.rows.begin(), c.rows.end(), [&](const GapRow& r) { return r.at >= *o.from; });
    c.window_begin = static_cast<std::size_t>(first - c.rows.begin());
    check_usage(c.rows.size() - c.window_begin >= kFewest, "--from {} leaves {} pairs, and {} are needed",
                *o.from, c.rows.size() - c.window_begin, kFewest);
    return;
  }
  const auto wanted = static_cast<std::size_t>(std::ceil(o.window * static_cast<double>(c.rows.size())));
  c.window_begin = c.rows.size() - std::clamp(wanted, kFewest, c.rows.size());
}

void add_differences(CurveComparison& c) {
  for (const auto& entry : c.a.identity) {
    const auto it = c.b.identity.find(entry.first);
    if (it != c.b.identity.end() && it->second != entry.second)
      c.differences.push_back(fmt::format("{}: {} and {}", entry.first, entry.second, it->second));
  }
  if (c.a.validation != c.b.validation)
    c.differences.push_back(fmt::format("metric: {} and {}", c.a.metric, c.b.metric));
}

bool same(const CurveComparison& c, const char* key) {
  const auto a = c.a.identity.find(key), b = c.b.identity.find(key);
  return a != c.a.identity.end() && b != c.b.identity.end() && a->second == b->second;
}

void add_claims(CurveComparison& c) {
  const bool seeds = c.a.runs > 1 && c.b.runs > 1;
  const bool resolved = c.interval[0] > 0 || c.interval[1] < 0;
  const std::string verb = c.gap > 0 ? "worse" : "better";
  c.claims.push_back(
      resolved
          ? fmt::format("The second is measurably {} than the first here: zero lies outside the interval.",
                        verb)
          : std::string("The two are not told apart here: zero lies inside the interval, which is not the "
                        "same as being equal."));
  if (seeds)
    c.claims.push_back(
        fmt::format("Points are means of {:.0f} and {:.0f} seeds, so this is about the two "
                    "set-ups, in everything in which they differ.",
                    c.a.runs, c.b.runs));
  else
    c.claims.push_back(
        "One pair: this is about these two runs. What a recipe costs in general needs three pairs of other "
        "seeds at least (`nibble validate`, protocol.pairs = 3).");
  if (same(c, "init") && same(c, "data") && same(c, "seed"))
    c.claims.push_back("Both started from the same bytes with the same seed on the same data.");
  else if (!seeds)
    c.claims.push_back("That both saw the same batches from the same start is not known from these files.");
  if (!c.a.validation || !c.b.validation)
    c.claims.push_back(
        "A training loss: unless both saw the same batches, one step scatters by 0.05 to 0.08 nats between "
        "seeds [MLPERF51], ten times what a validation loss does.");
  if (!c.limit) return;
  c.claims.push_back(
      "The limit was chosen with the curves at hand: a verdict that binds is fixed before the run "
      "(`nibble validate`).");
}

void add_extra_tokens(CurveComparison& c) {
  std::vector<EvalPoint> a, b;
  for (const GapRow& r : c.rows) {
    const auto tokens = r.tokens ? *r.tokens : r.at;
    // Samples and steps are in proportion to tokens, and the result is a ratio.
    a.push_back({r.at, tokens, r.a});
    b.push_back({r.at, tokens, r.b});
  }
  c.extra_tokens = extra_tokens(a, b);
}

}  // namespace

PairNoise published_pair_noise() {
  return {0.003, "published: unpaired seeds of an 8B model in public logs [MLPERF51]"};
}

namespace {

std::optional<double> parse_share(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || !std::isfinite(value)) return {};
  if (rest.empty()) return value;
  return rest == "%" || rest == " %" ? std::optional(value / 100) : std::nullopt;
}

/// As a verdict of one pair takes a stored noise floor.
PairNoise stored_noise(const std::string& file) {
  const NoiseFloor floor = read_noise_floor(file);
  const auto it = floor.aa_rms.find("final");
  check_usage(it != floor.aa_rms.end(), "{} has no final window", file);
  const NoiseRule rule;
  return {std::max(rule.aa_factor * it->second, rule.assumed_sigma),
          fmt::format("{}: {} A/A arm{}, gap {:.2f} %, {:.2f} % at least", file, floor.arms,
                      floor.arms == 1 ? "" : "s", 100 * it->second, 100 * rule.assumed_sigma)};
}

void check_sigma(double sigma, const std::string& where) {
  check_usage(sigma > 0 && sigma < 0.2, "{}: a noise of {} is not a share between 0 and 0.2 (0.003, or 0.3%)",
              where, sigma);
}

}  // namespace

double share_from(const std::string& text) {
  const auto share = parse_share(text);
  check_usage(share.has_value(), "\"{}\" is neither a share (0.015) nor a percentage (1.5%)", text);
  return *share;
}

PairNoise pair_noise_from(const std::string& text) {
  if (const auto share = parse_share(text)) {
    check_sigma(*share, "--noise");
    return {*share, "as given"};
  }
  check_usage(std::filesystem::exists(text), "noise \"{}\" is neither a number, a percentage nor a file",
              text);
  const Json json = read_json(text);
  if (json.is_object() && json.contains("aa_rms")) return stored_noise(text);
  const auto sigma = json_get<double>(json, "noise_floor", text);
  check_sigma(sigma, text);
  return {sigma, fmt::format("{}{}{}", text, json.contains("noise_source") ? ": " : "",
                             json_get_or<std::string>(json, "noise_source", "", text))};
}

CurveComparison compare_curves(Curve a, Curve b, const CompareOptions& o) {
  CurveComparison c{.a = std::move(a), .b = std::move(b)};
  c.paired_by = o.by_tokens ? "tokens" : c.a.step_name;
  check_usage(o.by_tokens || c.a.step_name == c.b.step_name,
              "{} counts {} and {} counts {}; pair them with --by tokens", c.a.source, c.a.step_name,
              c.b.source, c.b.step_name);
  std::vector<double> variances;
  pair_points(c, o, variances);
  require_pairs(c, o);
  set_window(c, o);
  if (o.noise)
    c.noise = *o.noise;
  else if (const auto own = noise_of_files(c, variances))
    c.noise = *own;
  else
    c.noise = published_pair_noise();
  for (std::size_t i = c.window_begin; i < c.rows.size(); ++i) {
    if (!std::isfinite(c.rows[i].b))
      throw Error(ErrorKind::NonFinite, fmt::format("{}: the loss at {} {} is {}: it broke down, and no mean "
                                                    "gap says more than that",
                                                    c.b.source, c.paired_by, c.rows[i].at, c.rows[i].b));
  }
  set_interval(c, o);
  add_extra_tokens(c);
  add_differences(c);
  add_claims(c);
  return c;
}

}  // namespace nibble
