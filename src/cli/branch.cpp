// SPDX-License-Identifier: Apache-2.0
#include "validate/branch.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "report/branch_page.h"
#include "validate/branch_sweep.h"
#include "validate/compare.h"

namespace nibble {
namespace {

struct Options {
  std::string checkpoint, limit, json, sweep, baseline;
  BranchRequest request;
  SweepRequest sweep_request;
  MachineOptions machine;
  bool resume = false, quiet = false;
};

std::function<std::shared_ptr<ConsoleSink>(const Stretch&)> console_of(const Options& o, const RunConfig& c) {
  return [&](const Stretch&) -> std::shared_ptr<ConsoleSink> {
    if (o.quiet) return nullptr;
    return std::make_shared<ConsoleSink>(console_options_for(stdout, c.metrics.progress));
  };
}

ExitCode stopped(int signal) {
  fmt::print("stopped by signal {}; state saved. Continue with the same command and --resume\n", signal);
  return 128 + signal;
}

void make_place(const std::filesystem::path& directory, bool resume) {
  if (const auto moved = open_run_directory(directory, resume))
    fmt::print("{} held an earlier one: it is now {}\n", directory.string(), moved->string());
}

ExitCode run_sweep(const Options& o) {
  SweepRequest request = o.sweep_request;
  request.at = sweep_marks(o.sweep);
  request.recipe = o.request.other.recipe;
  request.forward_too = o.request.other.gemms.empty();
  request.gemms = o.request.other.gemms;
  request.baseline = o.baseline;
  const RunPoint point = run_point_before(o.checkpoint, 0, settings_of(o.machine));
  const SignalGuard signals;
  const RunSetup setup(point.config);
  const SweepPlan plan = plan_sweep(setup, point, request, settings_of(o.machine));
  Workplace here(point.config);
  require_sound_quantisation(here.stream);
  make_place(plan.directory, o.resume);
  const SweepRun done = run_sweep(setup, plan, here.stream, o.resume, signals, console_of(o, point.config));
  if (done.signal != 0) return stopped(done.signal);
  if (!o.json.empty()) write_json(o.json, sweep_json(done.result));
  fmt::print("\n{}", sweep_text(done.result));
  fmt::print("figures: {}\n", (plan.directory / "sweep.json").string());
  return 0;
}

ExitCode run(const Options& o) {
  if (!o.sweep.empty()) return run_sweep(o);
  BranchRequest request = o.request;
  if (!o.limit.empty()) request.limit = share_from(o.limit);
  const RunPoint point = find_run_point(o.checkpoint, settings_of(o.machine));
  const SignalGuard signals;
  const RunSetup setup(point.config);
  // Refuses what cannot be run, before anything is touched.
  const BranchPlan plan = plan_branch(setup, point, request);
  Workplace here(point.config);
  require_sound_quantisation(here.stream);
  make_place(plan.directory, o.resume);
  const BranchRun done = run_branch(setup, plan, here.stream, o.resume, signals, console_of(o, point.config));
  if (done.signal != 0) return stopped(done.signal);
  const Branch& b = done.result;
  const std::filesystem::path page = plan.directory / "branch.html";
  write_file_atomically(page, branch_html(b));
  if (!o.json.empty()) write_json(o.json, branch_json(b));
  fmt::print("\n{}report: {}\n", branch_text(b), page.string());
  if (!b.broken.empty()) return 5;
  return b.limit ? exit_code(b.outcome) : 0;
}

}  // namespace

Verb add_branch(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option(
         "CHECKPOINT", o->checkpoint,
         "runs/NAME/checkpoints/step_00001000, or a run's folder for its newest; with --sweep a run's "
         "folder")
      ->required();
  app.add_option("--recipe", o->request.other.recipe,
                 "Recipe of the branch (default bf16); `nibble help recipes` lists them");
  app.add_option("--gemms", o->request.other.gemms,
                 "Only these GEMMs follow the branch's recipe: fprop, dgrad, wgrad (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"fprop", "dgrad", "wgrad"}));
  app.add_option("--tokens", o->request.tokens,
                 "Tokens to train on: a share of the run, or 500000, 20k, 1.5M, 60B (default 1%)");
  app.add_option("--steps", o->request.steps, "Steps to train on, instead of --tokens")
      ->check(CLI::PositiveNumber);
  app.add_option("--evals", o->request.evaluations, "Evaluations, evenly over the branch (default 10)")
      ->check(CLI::Range(6, 1000));
  app.add_flag(
      "--aa", o->request.aa,
      "Also train the unchanged recipe under another rounding key (an A/A arm), which measures the noise");
  app.add_option(
      "--noise", o->request.noise,
      "Noise of the gap, at least: 0.003, 0.3%, or the noise_floor.json or verdict.json of a comparison");
  app.add_option("--limit", o->limit, "Judge against a limit: 0.005 or 0.5%. Sets the exit code");
  app.add_option("--sweep", o->sweep,
                 "at=60%,70%,80%: switch there and train to the end; finds the latest switch that recovers a "
                 "share of the gap")
      ->excludes("--limit");
  app.add_option("--recover", o->sweep_request.recover,
                 "Of --sweep: the wanted share of the gap (default 0.8)")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option(
      "--baseline", o->baseline,
      "Of --sweep: a run in the other recipe from the start; default: baseline/ beside a comparison's "
      "arm");
  app.add_option("--json", o->json, "Write the figures to this file too");
  add_machine_options(app, o->machine);
  app.add_flag("--resume", o->resume, "Continue an interrupted branch, bit for bit");
  app.add_flag("--quiet", o->quiet, "No progress lines");
  app.footer(
      "Trains from one checkpoint, on the same batches, the run as it is and a branch under another recipe.\n"
      "Writes RUN/branches/STEP_RECIPE/{branch,candidate,candidate_aa}/, branch.json, branch.html; with "
      "--sweep "
      "RUN/branches/sweep/.\n"
      "Exit code: 0; with --limit 0 pass, 3 fail, 4 inconclusive; 5 when an arm was not finite.");
  return [o] { return run(*o); };
}

}  // namespace nibble
