// SPDX-License-Identifier: Apache-2.0
// The law on runs that it did not see.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "validate/forecast.h"

namespace nibble {
namespace {

constexpr double kLargestFitted = 110e6;  ///< between the ladder's 100M and 200M
constexpr double kLongestFitted = 300;    ///< tokens a parameter
constexpr double kHandfulLargest = 60e6;  ///< 30M and 50M
constexpr double kHandfulLongest = 120;   ///< 25, 50 and 100 tokens a parameter

std::vector<GapRun> select(const std::vector<GapRun>& runs, const std::function<bool(const GapRun&)>& keep) {
  std::vector<GapRun> out;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(out), keep);
  return out;
}

CheckRow row_of(const GapLaw& law, const GapRun& run) {
  return {run.name, run.parameters, run.tokens, run.gap, law.predict(run.parameters, run.tokens)};
}

/// Rows where `held` says so, from a law of the other rows.
void add_split(std::vector<CheckRow>& out, const std::vector<GapRun>& runs,
               const std::function<bool(const GapRun&)>& held) {
  const GapLaw law = GapLaw::fit(select(runs, [&](const GapRun& r) { return !held(r); }));
  for (const GapRun& r : select(runs, held)) out.push_back(row_of(law, r));
}

void add_larger(ForecastCheck& check) {
  const GapLaw prior = literature_prior(), ladder = ladder_law();
  for (const PublishedRun& p : published_runs()) {
    GapRun run{
        .name = fmt::format("{}, {}", p.name, p.recipe), .parameters = p.parameters, .tokens = p.tokens};
    run.gap = p.gap;
    if (!p.kept_blocks) {
      check.larger.push_back(row_of(GapLaw::fit(ladder_runs(p.recipe)), run));
      continue;
    }
    CheckRow row = row_of(prior, run);
    const double factor = kept_blocks_remedy(ladder, p.name).factor;
    row.forecast.gap *= factor;
    for (double& end : row.forecast.interval) end *= factor;
    check.kept.push_back(row);
  }
}

std::string count_text(double n) {
  if (n >= 1e12) return fmt::format("{:.3g}T", n / 1e12);
  if (n >= 1e9) return fmt::format("{:.3g}B", n / 1e9);
  return n >= 1e6 ? fmt::format("{:.3g}M", n / 1e6) : fmt::format("{:.3g}k", n / 1e3);
}

std::string table(const std::vector<CheckRow>& rows) {
  std::string out = fmt::format("  {:<32}{:>8}{:>8}{:>11}{:>10}{:>9}  {:>16}\n", "run", "N", "tokens",
                                "published", "forecast", "error", "90 % interval");
  for (const CheckRow& r : rows)
    out +=
        fmt::format("  {:<32}{:>8}{:>8}{:>9.2f} %{:>8.2f} %{:>+9.2f}  {:>6.2f} to {:>4.2f} {}{}\n", r.what,
                    count_text(r.parameters), count_text(r.tokens), 100 * r.published, 100 * r.forecast.gap,
                    100 * r.error(), 100 * r.forecast.interval[0], 100 * r.forecast.interval[1],
                    r.inside() ? "inside" : "OUTSIDE", r.forecast.reach == Reach::TooFar ? ", too far" : "");
  return out;
}

std::string line(const char* what, const std::vector<CheckRow>& rows) {
  const CheckSummary s = summary_of(rows);
  return fmt::format("  {:<62}{:>4} of {:>3} inside; error {:.2f} in the median, {:.2f} at worst\n", what,
                     s.inside, s.rows, 100 * s.median, 100 * s.worst);
}

}  // namespace

CheckSummary summary_of(const std::vector<CheckRow>& rows) {
  CheckSummary s{.rows = rows.size()};
  std::vector<double> errors;
  for (const CheckRow& r : rows) {
    errors.push_back(std::abs(r.error()));
    s.inside += r.inside() ? 1 : 0;
  }
  if (errors.empty()) return s;
  std::sort(errors.begin(), errors.end());
  s.worst = errors.back();
  s.median = (errors[errors.size() / 2] + errors[(errors.size() - 1) / 2]) / 2;
  return s;
}

ForecastCheck check_forecast() {
  ForecastCheck check;
  const GapLaw nvidia_small = GapLaw::fit(
      select(ladder_runs("nvidia"), [](const GapRun& r) { return r.parameters < kLargestFitted; }));
  for (const std::string& recipe : kLadderRecipes) {
    const auto runs = ladder_runs(recipe);
    add_split(check.held_out, runs, [](const GapRun& r) { return r.parameters > kLargestFitted; });
    for (const double size : {30482560.0, 49556736.0, 102777856.0, 203188480.0})
      add_split(check.sizes, runs, [size](const GapRun& r) { return r.parameters == size; });
    add_split(check.horizons, runs, [](const GapRun& r) { return r.tokens / r.parameters > kLongestFitted; });
    if (recipe == "nvidia") continue;
    const auto pilots = select(runs, [](const GapRun& r) {
      return r.parameters < kHandfulLargest && r.tokens / r.parameters < kHandfulLongest;
    });
    const GapLaw law = GapLaw::update(nvidia_small.for_another_setup(), pilots);
    for (const GapRun& r : select(runs, [](const GapRun& x) { return x.parameters > kLargestFitted; }))
      check.handful.push_back(row_of(law, r));
  }
  add_larger(check);
  return check;
}

std::string check_text(const ForecastCheck& c) {
  std::string out =
      "Law: gap = a N^b (D / N)^c, N without embedding and head. On the public ladder [QUARTET2]\n";
  for (const std::string& recipe : kLadderRecipes) {
    const GapLaw law = GapLaw::fit(ladder_runs(recipe));
    out += fmt::format(
        "  {:<14} {:.2f} % at 100M and 100 tokens a parameter, b = {:+.3f}, c = {:.3f}, scatter {:.1f} %\n",
        recipe, 100 * std::exp(law.mean[0]), law.mean[1], law.mean[2], 100 * law.scatter);
  }
  out += "\n200M rows, from the rows up to 100M of the same recipe\n" + table(c.held_out);
  out += "\nHeld out (errors in percentage points of the loss)\n";
  out += line("200M, from 30M to 100M", c.held_out);
  out += line("each size, from the other three", c.sizes);
  out += line("200M, from six pilots of 30M and 50M and NVIDIA's prior", c.handful);
  out += line("more than 300 tokens a parameter, from shorter runs", c.horizons);
  out += "\nPublished larger runs, all linears in NVFP4, from the whole ladder of the same recipe\n" +
         table(c.larger);
  out +=
      "\nPublished larger runs with blocks kept in BF16, from the prior and what the other such runs kept of "
      "the "
      "gap\n" +
      table(c.kept);
  return out;
}

}  // namespace nibble
