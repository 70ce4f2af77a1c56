// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "cli/cli.h"
#include "io/file.h"
#include "io/json.h"
#include "validate/calibration.h"

/// `nibble bench --verdict`: how often the verdict is wrong, on simulated pairs.
namespace nibble {
namespace {

constexpr int kPairs[] = {1, 2, 3, 5};

struct Options {
  bool verdict = false;
  int simulations = 2000;
  std::uint64_t seed = 1;
};

std::string share(double value) { return fmt::format("{:.2f}", 100 * value); }

void print_row(const CalibrationRow& r) {
  fmt::print("  {:<7} {:>5} {:>7} | {:>6} {:>7} {:>9} {:>6} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>8}\n",
             r.world, r.pairs, share(r.limit), share(r.false_fail), share(r.false_abort), share(r.coverage),
             share(r.passed), share(r.false_pass), share(r.true_abort), share(r.abort_delay),
             share(r.abort_delay_later), share(r.passed_at_limit), share(r.failed_at_limit),
             share(r.aborted_below_limit));
}

Json row_json(const CalibrationRow& r) {
  return {{"world", r.world},
          {"pairs", r.pairs},
          {"simulations", r.simulations},
          {"limit", r.limit},
          {"false_fail", r.false_fail},
          {"false_abort", r.false_abort},
          {"coverage", r.coverage},
          {"passed", r.passed},
          {"false_pass", r.false_pass},
          {"true_abort", r.true_abort},
          {"abort_delay", r.abort_delay},
          {"abort_delay_later", r.abort_delay_later},
          {"passed_at_limit", r.passed_at_limit},
          {"failed_at_limit", r.failed_at_limit},
          {"aborted_below_limit", r.aborted_below_limit}};
}

ExitCode run(const Options& o, const std::string& json_path) {
  fmt::print("verdicts of {} simulated comparisons a row, by the code that judges real runs; noise:\n",
             o.simulations);
  Json json{{"simulations", o.simulations}, {"seed", o.seed}};
  for (const NoiseWorld& w : noise_worlds()) {
    fmt::print("  {:<7} {} parameters; {}{}\n", w.name, w.parameters, w.source,
               w.promised ? "" : " (shown, not promised)");
    json["worlds"][w.name] = w.source;
  }
  fmt::print(
      "\nin %: no gap: FAIL, ABORTED over the run, 95 % interval covers, PASS | twice the limit: PASS, "
      "ABORTED, "
      "median delay of the abort\nas share of the run, the same where the gap opens at half | exactly the "
      "limit "
      "without the abort rule: PASS, FAIL | 2/3 of it: ABORTED\n\n");
  fmt::print("  {:<7} {:>5} {:>7} | {:>6} {:>7} {:>9} {:>6} | {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>8}\n",
             "noise", "pairs", "limit", "FAIL", "ABORTED", "coverage", "PASS", "PASS", "ABORT", "delay",
             "later", "PASS", "FAIL", "ABORTED");
  std::vector<std::string> missed;
  for (const NoiseWorld& w : noise_worlds()) {
    for (const int pairs : kPairs) {
      const CalibrationRow row = calibrate(w, pairs, o.simulations, o.seed);
      print_row(row);
      json["rows"].push_back(row_json(row));
      for (const std::string& m : missed_promises(row)) missed.push_back(m);
    }
  }
  json["missed"] = missed;
  if (!json_path.empty()) write_json(json_path, json);
  for (const std::string& m : missed) fmt::print("NOT MET  {}\n", m);
  fmt::print("\nsampling error of a share of 95 %: {:.1f}\n", 100 * std::sqrt(0.95 * 0.05 / o.simulations));
  if (missed.empty()) {
    fmt::print(
        "all met: false FAIL and false PASS at most 5 %, coverage 93 to 97 % (at least 93 % below three "
        "pairs), "
        "false aborts at most 1 %\n");
  }
  return missed.empty() ? 0 : 1;
}

}  // namespace

Verb with_verdict_bench(CLI::App& app, Verb otherwise) {
  auto o = std::make_shared<Options>();
  app.add_flag("--verdict", o->verdict, "Instead: how often the verdict is wrong, on simulated comparisons");
  app.add_option("--pairs-simulated", o->simulations, "With --verdict: comparisons a row")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--verdict-seed", o->seed, "With --verdict: seed of the draws")->capture_default_str();
  const CLI::Option* json = app.get_option("--json");
  return [o, json, otherwise = std::move(otherwise)] {
    return o->verdict ? run(*o, json->count() > 0 ? json->as<std::string>() : std::string()) : otherwise();
  };
}

}  // namespace nibble
