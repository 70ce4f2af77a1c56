// SPDX-License-Identifier: Apache-2.0
#include "cli/forecast_pilots.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "models/parameters.h"
#include "validate/run_arms.h"

namespace nibble {

double block_parameters(const DecoderSpec& spec) {
  double sum = 0;
  for (const LinearInfo& l : linears(spec)) sum += static_cast<double>(l.n) * static_cast<double>(l.k);
  return sum;
}

namespace {

/// "a=1,b=[2,3]" at the commas outside brackets and quotes.
std::vector<std::string> split_sets(const std::string& text) {
  std::vector<std::string> out(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    quoted = quoted != (c == '"');
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0 && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// One pilot: a whole comparison, or its verdict when it has been run before. Nothing when the pilot ended
/// early: its gap is not that of its length.
std::optional<GapRun> run_pilot(const PilotOptions& o, const std::vector<std::string>& sets,
                                const std::string& label, int& signal) {
  std::vector<std::string> all = o.overrides;
  all.insert(all.end(), sets.begin(), sets.end());
  RunConfig config = load_with({.path = o.config, .overrides = all}, o.machine);
  config.training.name += "-" + label;
  const SignalGuard signals;
  const RunSetup setup(config);
  Workplace here(config);
  Stream& stream = here.stream;
  if (quantizes(candidate_recipe(config))) require_sound_quantisation(stream);
  const std::filesystem::path directory = run_directory(config);
  GapRun out{.name = config.training.name,
             .parameters = block_parameters(setup.model()),
             .tokens = static_cast<double>(config.training.steps * config.tokens_per_step())};
  const bool resume = o.resume && std::filesystem::exists(directory / "protocol.json");
  const bool done = resume && std::filesystem::exists(directory / "verdict.json");
  Verdict verdict;
  if (done) {
    verdict = verdict_from_json(read_file(directory / "verdict.json"));
    check_usage(verdict.protocol_hash == protocol_hash(protocol_of(setup)),
                "{} was made under another protocol; run the pilots again without --resume",
                directory.string());
  } else {
    if (const auto moved = open_run_directory(directory, resume))
      fmt::print("{} held an earlier run: it is now {}\n", directory.string(), moved->string());
    const Comparison c =
        run_comparison(setup, stream, resume, signals, [](const ArmSpec&) { return nullptr; });
    if (!c.finished) {
      signal = c.signal;
      return {};
    }
    verdict = c.verdict;
  }
  if (verdict.abort) {
    fmt::print("pilot {} ended at step {} ({}): it is left out\n", out.name, verdict.abort->step,
               verdict.abort->rule);
    return {};
  }
  out.gap = verdict.relative_gap;
  // The law wants the noise of what was measured: the mean over the pairs.
  out.noise = verdict.noise_floor / std::sqrt(static_cast<double>(verdict.pairs));
  fmt::print("pilot {}: {:.3g} parameters, {:.3g} tokens, gap {:+.2f} %, noise {:.2f} %{}\n", out.name,
             out.parameters, out.tokens, 100 * out.gap, 100 * out.noise, done ? " (run before)" : "");
  std::fflush(stdout);
  return out;
}

}  // namespace

std::vector<GapRun> run_pilots(const PilotOptions& o, int& signal) {
  const RunConfig base = load_with({.path = o.config, .overrides = o.overrides}, o.machine);
  const std::vector<std::string> sizes = o.sizes.empty() ? std::vector<std::string>{""} : o.sizes;
  const std::vector<std::int64_t> steps =
      o.steps.empty() ? std::vector<std::int64_t>{base.training.steps} : o.steps;
  std::vector<GapRun> runs;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    for (const std::int64_t n : steps) {
      std::vector<std::string> sets = sizes[s].empty() ? std::vector<std::string>{} : split_sets(sizes[s]);
      sets.push_back(fmt::format("training.steps={}", n));
      const auto run = run_pilot(o, sets, fmt::format("pilot-{}-{}", s + 1, n), signal);
      if (signal != 0) return runs;
      if (run) runs.push_back(*run);
    }
  }
  check(!runs.empty(), "no pilot reached its end; look at what stopped them in {}", base.training.runs);
  const std::filesystem::path table =
      std::filesystem::path(base.training.runs) / (base.training.name + "-pilots.csv");
  write_file(table, gap_runs_csv(runs));
  fmt::print("pilots: {} (again with --pilots {})\n\n", table.string(), table.string());
  return runs;
}

}  // namespace nibble
