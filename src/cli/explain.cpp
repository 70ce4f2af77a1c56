// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/cli.h"
#include "models/flops.h"
#include "models/parameters.h"
#include "recipe/resolve.h"
#include "train/run_config.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
  std::int64_t step = 0;
};

ExitCode run(const Options& o) {
  const RunConfig config = load_with(o.config, o.machine);
  const DecoderSpec model = model_of(config);
  const Recipe recipe = candidate_recipe(config);
  const std::vector<LinearInfo> all = linears(model);
  check_recipe(recipe, all, config.micro_batch() * config.training.sequence);
  check_attention(recipe, model, config.training.sequence);
  const FlopsPerToken flops = flops_per_token(model, config.training.sequence);
  fmt::print("model {}: {} blocks{}, d {}, vocabulary {}, {} parameters, {:.3f} GFLOP a token at T = {}\n",
             config.model.preset.empty() ? model.family : config.model.preset, model.blocks(),
             model.family == "nemotron_h" || model.family == "mamba2" ? " (" + pattern(model) + ")" : "",
             model.d_model, model.vocab, param_count(model), flops.total() * 1e-9, config.training.sequence);
  fmt::print("{}", explain(recipe, all, o.step, flops.total() - flops.linears));
  return 0;
}

}  // namespace

Verb add_explain(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.add_option("--step", o->step, "The training step to explain")->capture_default_str();
  return [o] { return run(*o); };
}

}  // namespace nibble
