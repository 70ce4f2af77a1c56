// SPDX-License-Identifier: Apache-2.0
#include "validate/forecast.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "models/parameters.h"
#include "plan/plan_text.h"
#include "plan/tokens.h"
#include "validate/run_arms.h"

namespace nibble {
namespace {

struct Options {
  std::string model, parameters, tokens = "1T", pilots, pilot;
  std::vector<std::string> overrides, sizes;
  std::vector<std::int64_t> steps;
  MachineOptions machine;
  bool check = false, resume = false;
};

/// N of the law: the matrices of the blocks. Norms and biases are a thousandth of them.
double block_parameters(const DecoderSpec& spec) {
  double sum = 0;
  for (const LinearInfo& l : linears(spec)) sum += static_cast<double>(l.n) * static_cast<double>(l.k);
  return sum;
}

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
std::optional<GapRun> run_pilot(const Options& o, const std::vector<std::string>& sets,
                                const std::string& label, int& signal) {
  std::vector<std::string> all = o.overrides;
  all.insert(all.end(), sets.begin(), sets.end());
  RunConfig config = load_with({.path = o.pilot, .overrides = all}, o.machine);
  config.training.name += "-" + label;
  const SignalGuard signals;
  const RunSetup setup(config);
  HostDevice host;
  Stream stream(backend_from_name(config.training.backend), host, static_cast<int>(config.training.threads));
  if (quantizes(candidate_recipe(config))) require_sound_quantisation(stream);
  const std::filesystem::path directory = run_directory(config);
  GapRun out{.name = config.training.name,
             .parameters = block_parameters(setup.model()),
             .tokens = static_cast<double>(config.training.steps * config.tokens_per_step())};
  const bool done = o.resume && std::filesystem::exists(directory / "verdict.json");
  Verdict verdict;
  if (done) {
    verdict = verdict_from_json(read_file(directory / "verdict.json"));
    check_usage(verdict.protocol_hash == protocol_hash(protocol_of(setup)),
                "{} was made under another protocol; run the pilots again without --resume",
                directory.string());
  } else {
    if (const auto moved = open_run_directory(directory, o.resume))
      fmt::print("{} held an earlier run: it is now {}\n", directory.string(), moved->string());
    const Comparison c =
        run_comparison(setup, stream, o.resume, signals, [](const ArmSpec&) { return nullptr; });
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

std::vector<GapRun> run_pilots(const Options& o, int& signal) {
  const RunConfig base = load_with({.path = o.pilot, .overrides = o.overrides}, o.machine);
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

struct Target {
  std::string name;
  double law_parameters = 0;   ///< of the gap's law
  double loss_parameters = 0;  ///< of the loss law, which counts all
};

Target target_of(const Options& o) {
  check_usage(!o.model.empty() || !o.parameters.empty(),
              "forecast what? Give --model PRESET or --parameters 8B, and --tokens; --check shows what the "
              "law is worth");
  check_usage(o.model.empty() || o.parameters.empty(), "--model and --parameters both name a size; give one");
  if (o.model.empty()) {
    const double n = parse_tokens(o.parameters);
    return {fmt::format("a model of {}", o.parameters), n, n};
  }
  const PlanModel model = find_plan_model(o.model);
  check_usage(
      model.dense.has_value(),
      "{} is a mixture of experts, and the law was fitted to dense models; --parameters with its active "
      "parameters asks for that at your own risk",
      o.model);
  return {model.name, block_parameters(*model.dense), static_cast<double>(plan_parameters(model))};
}

ExitCode run(const Options& o) {
  if (o.check) {
    fmt::print("{}", check_text(check_forecast()));
    return 0;
  }
  check_usage(o.pilots.empty() || o.pilot.empty(),
              "--pilots names finished runs and --pilot makes them; give one");
  check_usage(o.pilot.empty() ? o.sizes.empty() && o.steps.empty() : true,
              "--size and --steps belong to --pilot");
  const Target target = target_of(o);
  const double tokens = parse_tokens(o.tokens);
  std::vector<GapRun> pilots;
  int signal = 0;
  if (!o.pilots.empty()) pilots = read_gap_runs(o.pilots);
  if (!o.pilot.empty()) pilots = run_pilots(o, signal);
  if (signal != 0) {
    fmt::print("stopped by signal {}; state saved. Continue with the same command and --resume\n", signal);
    return 128 + signal;
  }
  ForecastReport report = make_forecast(target.name, target.law_parameters, tokens, pilots);
  const auto ratio = [&](double gap) { return token_ratio(target.loss_parameters, tokens, gap); };
  report.token_ratio = {ratio(report.forecast.interval[0]), ratio(report.forecast.gap),
                        ratio(report.forecast.interval[1])};
  for (const Remedy& r : report.remedies)
    report.remedy_token_ratio.push_back(ratio(report.forecast.gap * r.factor));
  fmt::print("{}", forecast_text(report));
  return 0;
}

}  // namespace

Verb add_forecast(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("--model", o->model, "A preset, or a model of `plan --list`");
  app.add_option("--parameters", o->parameters, "Or its parameters without embedding and head: 8B");
  app.add_option("--tokens", o->tokens, "Tokens to train: 1T");
  app.add_option("--pilots", o->pilots,
                 "Finished pilots: CSV with parameters, tokens, gap_percent, noise_percent");
  app.add_option("--pilot", o->pilot, "Run pilots first: the configuration of a comparison (TOML)");
  app.add_option("--set", o->overrides, "With --pilot: override a key in all pilots")->take_all();
  app.add_option("--size", o->sizes,
                 "With --pilot: overrides of one size, model.hidden=64,model.ffn=256; repeat it")
      ->take_all();
  app.add_option("--steps", o->steps, "With --pilot: lengths in steps: 100,200,400")->delimiter(',');
  app.add_flag("--resume", o->resume, "With --pilot: keep finished pilots, continue an interrupted one");
  app.add_flag("--check", o->check,
               "Print what the law is worth: forecasts of published runs it did not see");
  add_machine_options(app, o->machine);
  app.footer(
      "The gap of NVFP4 against BF16, with the interval that 90 % of such runs lie in, and the tokens it "
      "costs.");
  return [o] { return run(*o); };
}

}  // namespace nibble
