// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "eval/run_tasks.h"
#include "io/file.h"
#include "telemetry/console_sink.h"
#include "train/setup.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
  bool resume = false;
};

ExitCode run(const Options& o) {
  const RunConfig config = load_with(o.config, o.machine);
  const bool resume = o.resume || config.checkpoint.resume;
  const SignalGuard signals;
  const RunSetup setup(config);
  const auto tasks = RunTasks::of(setup);  // refuses files that cannot be used before anything is touched
  Workplace here(config);
  Stream& stream = here.stream;
  const std::uint64_t seed = static_cast<std::uint64_t>(config.training.seed);
  Learner learner(stream, setup.learner(candidate_recipe(config), seed,
                                        static_cast<std::uint64_t>(config.precision.sr_seed)));
  if (quantizes(learner.config().recipe)) require_sound_quantisation(stream);
  const std::filesystem::path directory = run_directory(config);
  if (const auto moved = open_run_directory(directory, resume))
    fmt::print("{} held an earlier run: it is now {}\n", directory.string(), moved->string());
  write_file(directory / "run.toml", to_toml(config));

  const SampleOrder order = setup.order(seed);
  RunPlan plan = setup.plan(learner, stream.kind());
  plan.directory = directory;
  plan.eval_steps = plain_eval_steps(config.training.steps, config.eval.every);
  plan.resume = resume;
  RunTasks::attach(tasks, task_steps(config.training.steps, config.eval.every_steps), plan);
  const auto console = std::make_shared<ConsoleSink>(console_options_for(stdout, config.metrics.progress));
  const RunResult result =
      run_training(learner, {order, setup.validation(), setup.data().tokenizer}, plan, console, signals);
  if (result.end == RunEnd::Signal) {
    fmt::print("stopped by signal {} after step {}; saved {}. Continue with: {} --resume\n", result.signal,
               result.steps, result.checkpoint.string(), command_line("train", o.config, o.machine));
    return 128 + result.signal;
  }
  fmt::print("done: {} steps, {}\n", result.steps, result.checkpoint.string());
  return 0;
}

}  // namespace

Verb add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.add_flag("--resume", o->resume, "Continue the run from its newest valid checkpoint, bit for bit");
  app.footer(
      "The run's folder is training.runs/training.name: run.toml, metrics.jsonl, telemetry.jsonl, "
      "checkpoints/, and eval/ with eval.tasks.");
  return [o] { return run(*o); };
}

}  // namespace nibble
