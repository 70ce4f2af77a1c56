// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "report/ablation_plot.h"
#include "validate/ablation.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
  AblationRequest request;
  AblationWork work;
  std::string json;
  bool quiet = false;
};

void print_intro(const AblationPlan& plan) {
  const Protocol& p = plan.protocol;
  fmt::print("{}: {} parameters, {} steps of {} tokens, {} runs:", p.model, p.parameters, p.steps,
             p.tokens_per_step, p.arms.size());
  for (const ArmSpec& a : p.arms) fmt::print(" {}", a.directory);
  fmt::print("\n");
  for (const std::string& s : plan.left_out) fmt::print("left out: {}\n", s);
  std::fflush(stdout);
}

ExitCode run(const Options& o) {
  const RunConfig config = load_with(o.config, o.machine);
  AblationWork work = o.work;
  work.resume = work.resume || config.checkpoint.resume;
  const SignalGuard signals;
  const RunSetup setup(config);
  // Refuses what cannot be run, before anything is touched.
  const AblationPlan plan = plan_ablation(setup, o.request);
  Workplace here(config);
  require_sound_quantisation(here.stream);
  if (const auto moved = open_run_directory(plan.directory, work.resume || work.join || work.judge_only))
    fmt::print("{} held an earlier run: it is now {}\n", plan.directory.string(), moved->string());
  print_intro(plan);

  const auto console = [&](const ArmSpec&) -> std::shared_ptr<ConsoleSink> {
    if (o.quiet) return nullptr;
    return std::make_shared<ConsoleSink>(console_options_for(stdout, config.metrics.progress));
  };
  const auto skipped = [](const ArmSpec& a, const char* why) {
    fmt::print("{} {}\n", a.directory, why);
    std::fflush(stdout);
  };
  const AblationRun done = run_ablation(plan, here.stream, work, signals, console, skipped);
  if (done.signal != 0) {
    fmt::print("stopped by signal {}; state saved. Continue with the same command and --resume\n",
               done.signal);
    return 128 + done.signal;
  }
  if (done.judged) {
    write_file_atomically(plan.directory / "ablation.svg", ablation_svg(done.result));
    if (!o.json.empty()) write_json(o.json, ablation_json(done.result));
    fmt::print("\n{}", ablation_text(done.result));
    fmt::print("plot: {}\n", (plan.directory / "ablation.svg").string());
  }
  if (!done.finished)
    fmt::print("not finished: {}. Continue with the same command and --join{}\n",
               fmt::join(done.unfinished, " "),
               done.judged ? "" : "; nothing can be judged before baseline and full have ended");
  return 0;
}

}  // namespace

Verb add_ablate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.add_option(
         "--without", o->request.without,
         "Ingredients to leave out, one an arm: rht, sr, weights_2d, bf16_blocks. Default: [ablation] of the "
         "configuration, or all that the recipe has; none: only --arms")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--arms", o->request.arms,
                 "Further arms, edits of the configuration: 'mxfp4=precision.recipe=mxfp4' "
                 "'plain=precision.sr=false;precision.rht=false'")
      ->take_all();
  app.add_option("--seeds", o->request.seeds,
                 "Train every arm with this many seeds (default: ablation.seeds, or protocol.pairs); from "
                 "three on the "
                 "intervals are measured")
      ->check(CLI::Range(1, 99));
  app.add_flag("--resume", o->work.resume, "Skip the arms that are finished, continue the one that is not");
  app.add_flag(
      "--join", o->work.join,
      "As --resume, beside other processes of the same command: each takes the arms that nobody has, and "
      "whoever ends the last one judges");
  app.add_option("--only", o->work.only, "Train these arms alone, of all that are planned: full,no_rht")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--judge", o->work.judge_only, "Train nothing: judge the arms that have ended");
  app.add_flag("--quiet", o->quiet, "No progress lines");
  app.add_option("--json", o->json, "Write the figures to this file too");
  app.footer(
      "Trains the baseline, the recipe as configured (full), the same under another stochastic-rounding key "
      "(full_aa)\n"
      "and each edited recipe from the same bytes on the same batches, and ranks the gaps.\n"
      "Writes runs/NAME/{protocol.json, baseline/, full/, ..., ablation.json, ablation.svg}.\n"
      "Exit code: 0; 5 when the baseline was not finite.");
  return [o] { return run(*o); };
}

}  // namespace nibble
