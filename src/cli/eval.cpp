// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "eval/evaluate.h"
#include "eval/model.h"
#include "eval/results.h"
#include "io/file.h"
#include "train/setup.h"

namespace nibble {
namespace {

struct Options {
  MachineOptions machine;
  std::string model, tasks, tokenizer, precision = "bf16", json, samples;
  std::int64_t limit = 0;
};

ExitCode run(const Options& o) {
  const Recipe recipe = evaluation_recipe(o.precision);
  const std::vector<Task> tasks = read_tasks(o.tasks, o.limit);
  const std::filesystem::path folder = model_folder(o.model);
  Workplace here(o.machine);
  if (quantizes(recipe)) require_sound_quantisation(here.stream);
  EvalModel model(folder, o.tokenizer, here.stream, recipe);
  const TaskEncoder encoder(model.tokenizer());
  const std::vector<TaskResult> results = evaluate(
      tasks, encoder,
      [&](View<const std::int32_t> ids, View<const std::int32_t> targets, std::int64_t length) {
        return model.score(ids, targets, length);
      },
      model.batching());
  fmt::print("{} in {} on {}, context of {} tokens\n\n{}", folder.string(), o.precision,
             name_of(here.stream.kind()), model.spec().max_seq, results_table(results));
  if (!o.json.empty())
    write_file(o.json, results_json(results, {{"backend", std::string(name_of(here.stream.kind()))},
                                              {"limit", std::to_string(o.limit)},
                                              {"max_length", std::to_string(model.spec().max_seq)},
                                              {"model", folder.string()},
                                              {"nibble", nibble_version()},
                                              {"precision", o.precision},
                                              {"tasks", o.tasks},
                                              {"tasks_hash", tasks_hash(tasks)}}));
  if (!o.samples.empty()) write_file(o.samples, samples_jsonl(tasks, results));
  return 0;
}

}  // namespace

Verb add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("MODEL", o->model,
                 "Hugging Face model folder, a checkpoint, or runs/NAME (its newest checkpoint)")
      ->required();
  app.add_option("--tasks", o->tasks, "Folder with a tasks.jsonl, such as data/tasks")->required();
  app.add_option("--precision", o->precision,
                 "Forward pass: bf16; fp32; w4a4, NVFP4 weights and activations; w4a16, NVFP4 weights alone")
      ->capture_default_str();
  app.add_option("--limit", o->limit, "Examples of each task, the first ones; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--tokenizer", o->tokenizer, "tokenizer.json or its folder; default: the model's");
  app.add_option("--json", o->json, "Write the results to this file, under lm-eval-harness's keys");
  app.add_option("--samples", o->samples,
                 "Write every example's log-likelihoods to this file, a JSON line each");
  add_machine_options(app, o->machine);
  app.footer("Tasks, metrics and how they match lm-eval-harness: docs/howto/evaluate.md");
  return [o] { return run(*o); };
}

}  // namespace nibble
