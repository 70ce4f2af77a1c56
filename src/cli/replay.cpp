// SPDX-License-Identifier: Apache-2.0
#include "validate/replay.h"

#include <fmt/format.h>

#include "cli/cli.h"

namespace nibble {
namespace {

struct Options {
  std::string run, json;
  ReplayRequest request;
  MachineOptions machine;
};

ExitCode run(const Options& o) {
  const RunPoint start = replay_start(o.run, o.request, settings_of(o.machine));
  Workplace here(start.config);
  const Replay r = run_replay(start, o.request, here.stream);
  const std::filesystem::path folder = start.run / "replays";
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / fmt::format("step_{:08}.json", o.request.at);
  write_json(file, replay_json(r));
  if (!o.json.empty()) write_json(o.json, replay_json(r));
  fmt::print("{}figures: {}\n", replay_text(r), file.string());
  return exit_code(r.culprit);
}

}  // namespace

Verb add_replay(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("RUN", o->run, "Folder of a training run, or of an arm: runs/NAME/candidate")->required();
  app.add_option("--at", o->request.at,
                 "Step of the spike or NaN, as metrics.jsonl and the progress lines count")
      ->required()
      ->check(CLI::PositiveNumber);
  app.add_option("--before", o->request.before,
                 "Begin at the last checkpoint that is so many steps earlier, at least (default 0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--after", o->request.after,
                 "Steps to replay after it (default 1: error messages count steps from 0, the log from 1)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--other", o->request.other,
                 "Backend of the second replay (default auto: one that is here and cheap)")
      ->check(CLI::IsMember({"auto", "none", "ref", "cpu", "cuda"}));
  app.add_option("--json", o->json, "Write the figures to this file too");
  add_machine_options(app, o->machine);
  app.footer(
      "Trains from the last checkpoint before the step: the run's recipe, which must repeat the log bit for "
      "bit, "
      "bf16, and\n"
      "another backend; and the recipe with another batch in the event's place where bf16 shows the event "
      "too.\n"
      "Writes RUN/replays/STEP.json. Exit code: 0 nothing at fault, 6 the recipe, 7 the data, 8 the stack.");
  return [o] { return run(*o); };
}

}  // namespace nibble
