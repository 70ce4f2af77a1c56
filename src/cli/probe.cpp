// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "train/checkpoint.h"
#include "train/setup.h"
#include "validate/probe.h"

namespace nibble {
namespace {

struct Options {
  std::string checkpoint, config, recipe, json, toml, by = "loss";
  std::vector<std::string> overrides;
  MachineOptions machine;
  int batches = 4;
  bool no_exact = false;
  ProbeOptions probe;
};

/// RUN/run.toml of RUN/checkpoints/step_N.
std::filesystem::path config_of(const Options& o) {
  check_usage(std::filesystem::exists(std::filesystem::path(o.checkpoint) / "state.json"),
              "{} is no checkpoint: it holds no state.json; name a folder such as "
              "runs/NAME/checkpoints/step_00001000",
              o.checkpoint);
  if (!o.config.empty()) return o.config;
  const auto run = std::filesystem::absolute(o.checkpoint).lexically_normal();
  const auto folder = (run.has_filename() ? run : run.parent_path()).parent_path().parent_path();
  check_usage(std::filesystem::exists(folder / "run.toml"),
              "{} lies in no run (there is no {}); name its configuration with --config", o.checkpoint,
              (folder / "run.toml").string());
  return folder / "run.toml";
}

/// `count` batches of the validation text, evenly spread.
std::vector<ProbeBatch> batches_of(const RunSetup& setup, std::int64_t count) {
  const RunConfig& c = setup.config();
  const std::int64_t micro = c.micro_batch();
  const FixedSequences sequences(setup.data().validation, c.training.sequence, count * micro,
                                 setup.model().vocab);
  std::vector<ProbeBatch> out;
  for (std::int64_t b = 0; b < count; ++b) {
    Batch batch = sequences.batch(b * micro, micro);
    out.push_back({std::move(batch.ids), std::move(batch.targets)});
  }
  return out;
}

ExitCode run(const Options& o) {
  RunConfig config = load_with({config_of(o).string(), o.overrides}, o.machine);
  if (!o.recipe.empty()) {
    config.precision = PrecisionSection{};
    config.precision.recipe = o.recipe;
  }
  check_usage(o.by == "loss" || o.by == "gradient", "--by {} is not known; it is loss or gradient", o.by);
  ProbeOptions options = o.probe;
  options.exact = !o.no_exact;
  options.worth = o.by == "loss" ? Worth::Loss : Worth::Gradient;
  const RunSetup setup(config);
  Workplace here(config);
  require_sound_quantisation(here.stream);
  const Recipe recipe = candidate_recipe(config);
  Learner learner(here.stream,
                  setup.learner(find_recipe("bf16"), static_cast<std::uint64_t>(config.training.seed),
                                static_cast<std::uint64_t>(config.precision.sr_seed)));
  load_checkpoint(o.checkpoint, learner);
  const Probe p = probe(learner, here.stream, recipe, batches_of(setup, 2 * o.batches), options);
  if (!o.json.empty()) write_json(o.json, probe_json(p));
  if (!o.toml.empty()) write_file(o.toml, probe_toml(p));
  fmt::print("{}", probe_text(p));
  return 0;
}

}  // namespace

Verb add_probe(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("CHECKPOINT", o->checkpoint, "runs/NAME/checkpoints/step_NNNNNNNN")->required();
  app.add_option("--config", o->config,
                 "The run's configuration (default: run.toml of the checkpoint's run)");
  app.add_option("--set", o->overrides, "Override a key of it: --set training.micro_batch=4")->take_all();
  add_machine_options(app, o->machine);
  app.add_option("--recipe", o->recipe, "The recipe to probe (default: the configuration's)");
  app.add_option("--batches", o->batches, "Micro-batches of validation text to measure; as many judge")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--budget", o->probe.budget, "Share of the linears' FLOPs that may stay in BF16")
      ->capture_default_str();
  app.add_option("--by", o->by,
                 "What a kept linear is worth by: loss (forward) or gradient (forward and backward)")
      ->capture_default_str();
  app.add_flag("--no-exact", o->no_exact,
               "Do not measure against FP32 operands, which takes half of the time");
  app.add_option("--json", o->json, "Write the figures to this file");
  app.add_option("--toml", o->toml, "Write the proposed lines of [precision] to this file");
  app.footer(
      "Quantises one linear at a time at the checkpoint's weights, without training: errors of its three "
      "products, the\n"
      "loss with it alone quantised and with it alone kept, the error of the gradient. Proposes which "
      "linears to keep in\n"
      "BF16 for the budget, and judges the proposal on other batches beside the recipe's blocks at the two "
      "ends.");
  return [o] { return run(*o); };
}

}  // namespace nibble
