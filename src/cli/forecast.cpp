// SPDX-License-Identifier: Apache-2.0
#include "validate/forecast.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/forecast_pilots.h"
#include "plan/plan_text.h"
#include "plan/tokens.h"

namespace nibble {
namespace {

struct Options {
  std::string model, parameters, tokens = "1T", pilots, recipe;
  PilotOptions pilot;
  bool check = false;
};

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
  check_usage(o.pilots.empty() || o.pilot.config.empty(),
              "--pilots names finished runs and --pilot makes them; give one");
  check_usage(!o.pilot.config.empty() || (o.pilot.sizes.empty() && o.pilot.steps.empty() &&
                                          o.pilot.overrides.empty() && !o.pilot.resume),
              "--size, --steps, --set and --resume belong to --pilot");
  const Target target = target_of(o);
  const double tokens = parse_tokens(o.tokens);
  std::vector<GapRun> pilots;
  int signal = 0;
  if (!o.pilots.empty()) pilots = runs_of_recipe(read_gap_runs(o.pilots), o.recipe);
  if (!o.pilot.config.empty()) pilots = run_pilots(o.pilot, signal);
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
  app.add_option("--recipe", o->recipe, "Rows of --pilots to take, where its column recipe holds several");
  app.add_option("--pilot", o->pilot.config, "Run pilots first: the configuration of a comparison (TOML)");
  app.add_option("--set", o->pilot.overrides, "With --pilot: override a key in all pilots")->take_all();
  app.add_option("--size", o->pilot.sizes,
                 "With --pilot: overrides of one size, model.hidden=64,model.ffn=256; repeat it")
      ->take_all();
  app.add_option("--steps", o->pilot.steps, "With --pilot: lengths in steps: 100,200,400")->delimiter(',');
  app.add_flag("--resume", o->pilot.resume,
               "With --pilot: keep finished pilots, continue an interrupted one");
  app.add_flag("--check", o->check,
               "Print what the law is worth: forecasts of published runs it did not see");
  add_machine_options(app, o->pilot.machine);
  app.footer(
      "The gap of NVFP4 against BF16, with the interval that 90 % of such runs lie in, and the tokens it "
      "costs.");
  return [o] { return run(*o); };
}

}  // namespace nibble
