// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "validate/compare.h"

namespace nibble {
namespace {

std::string percent(double share) { return fmt::format("{:+.2f} %", 100 * share); }

std::string count_text(std::int64_t n) {
  const auto value = static_cast<double>(n);
  if (value >= 1e12) return fmt::format("{:.3g}T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.3g}B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  return fmt::format("{}", n);
}

std::string source_line(const char* letter, const Curve& c) {
  std::string out =
      fmt::format("{}  {}\n   {}, {}, {} points", letter, c.source, c.format, c.metric, c.points.size());
  for (const char* key : {"recipe", "seed", "global_batch_size"})
    if (const auto it = c.identity.find(key); it != c.identity.end())
      out += fmt::format(", {} {}", key, it->second);
  out += '\n';
  for (const std::string& note : c.notes) out += fmt::format("   note: {}\n", note);
  return out;
}

std::string table(const CurveComparison& c, int rows) {
  const bool tokens =
      c.paired_by != "tokens" &&
      std::all_of(c.rows.begin(), c.rows.end(), [](const GapRow& r) { return r.tokens.has_value(); });
  std::string out = fmt::format("{:>12}{}  {:>10}  {:>10}  {:>9}  {:>9}\n", c.paired_by,
                                tokens ? fmt::format("  {:>8}", "tokens") : "", "A", "B", "B - A", "gap");
  const std::size_t shown = std::min<std::size_t>(c.rows.size(), std::max(rows, 2));
  for (std::size_t i = 0; i < shown; ++i) {
    // The last row is always shown: it is the one that people quote.
    const std::size_t at = shown == 1 ? 0 : (i * (c.rows.size() - 1)) / (shown - 1);
    const GapRow& r = c.rows[at];
    out += fmt::format("{:>12}{}  {:>10.5f}  {:>10.5f}  {:>+9.5f}  {:>9}{}\n", r.at,
                       tokens ? fmt::format("  {:>8}", count_text(*r.tokens)) : "", r.a, r.b, r.b - r.a,
                       percent(r.gap), at >= c.window_begin ? "  *" : "");
  }
  return out + "             * in the window\n";
}

}  // namespace

std::string compare_text(const CurveComparison& c, int rows) {
  std::string out = source_line("A", c.a) + source_line("B", c.b);
  out += fmt::format("{} points paired by {}; without a partner: {} of A, {} of B; {}\n\n", c.rows.size(),
                     c.paired_by, c.only_a, c.only_b,
                     c.interpolated ? "B READ BETWEEN ITS POINTS, linearly" : "nothing interpolated");
  out += table(c, rows);
  const std::size_t n = c.rows.size() - c.window_begin;
  out += fmt::format("\ngap (B - A) / A over the last {} points, {} {} to {}: {}\n", n, c.paired_by,
                     c.rows[c.window_begin].at, c.rows.back().at, percent(c.gap));
  out += fmt::format("95 % interval: {} to {}\n", percent(c.interval[0]), percent(c.interval[1]));
  out += fmt::format("  noise of one pair {:.2f} % ({})\n", 100 * c.noise.sigma, c.noise.source);
  out += fmt::format(
      "  own scatter {:.2f} %; neighbours correlate {:.2f} ({}): {} points are worth {:.1f}\n",
      100 * c.spread, c.correlation,
      c.correlation_measured ? "measured, with the small-sample correction" : "published; too few to measure",
      n, c.independent);
  if (!c.autocorrelation.empty())
    out += fmt::format("  autocorrelation as it is, lags 1 to {}: {:.2f}\n", c.autocorrelation.size(),
                       fmt::join(c.autocorrelation, ", "));
  if (c.extra_tokens && std::isfinite(*c.extra_tokens))
    out += fmt::format(
        "  B needs {:+.1f} % tokens for the loss of the end: a rough figure, it compares points at "
        "different learning rates\n",
        100 * *c.extra_tokens);
  if (c.limit)
    out += fmt::format("{} at a limit of {} (one-sided 95 % bounds {} and {})\n",
                       c.outcome == Outcome::Pass   ? "PASS"
                       : c.outcome == Outcome::Fail ? "FAIL"
                                                    : "INCONCLUSIVE",
                       percent(*c.limit), percent(c.bounds[0]), percent(c.bounds[1]));
  if (!c.differences.empty()) out += "The files differ in\n";
  for (const std::string& d : c.differences) out += fmt::format("  - {}\n", d);
  out += "What this may claim\n";
  for (const std::string& s : c.claims) out += fmt::format("  - {}\n", s);
  return out;
}

namespace {

Json curve_json(const Curve& c) {
  return {{"source", c.source}, {"format", c.format},     {"metric", c.metric}, {"validation", c.validation},
          {"runs", c.runs},     {"identity", c.identity}, {"notes", c.notes},   {"points", c.points.size()}};
}

}  // namespace

Json compare_json(const CurveComparison& c) {
  Json rows = Json::array();
  for (const GapRow& r : c.rows) {
    Json row = {
        {c.paired_by, r.at}, {"a", r.a}, {"b", json_from_double(r.b)}, {"gap", json_from_double(r.gap)}};
    if (r.tokens) row["tokens"] = *r.tokens;
    rows.push_back(std::move(row));
  }
  Json out = {{"schema", 1},
              {"a", curve_json(c.a)},
              {"b", curve_json(c.b)},
              {"paired_by", c.paired_by},
              {"interpolated", c.interpolated},
              {"only_a", c.only_a},
              {"only_b", c.only_b},
              {"window_from", c.rows[c.window_begin].at},
              {"relative_gap", c.gap},
              {"gap_ci95", c.interval},
              {"bounds", c.bounds},
              {"standard_error", c.standard_error},
              {"noise_floor", c.noise.sigma},
              {"noise_source", c.noise.source},
              {"spread", c.spread},
              {"autocorrelation", c.autocorrelation},
              {"correlation", c.correlation},
              {"correlation_measured", c.correlation_measured},
              {"independent", c.independent},
              {"differences", c.differences},
              {"claims", c.claims},
              {"rows", std::move(rows)}};
  if (c.extra_tokens) out["extra_tokens"] = json_from_double(*c.extra_tokens);
  if (c.limit) {
    out["limit"] = *c.limit;
    out["outcome"] = name(c.outcome);
  }
  return out;
}

}  // namespace nibble
