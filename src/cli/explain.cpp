// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/gpu.h"
#include "models/flops.h"
#include "models/parameters.h"
#include "recipe/product.h"
#include "recipe/resolve.h"
#include "train/run_config.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
  std::int64_t step = 0;
  int capability = -1;
};

/// How the products of a step are made: as on the card that was named, on this machine's, or on the host.
std::string products(const Options& o, const RunConfig& config, const Recipe& recipe,
                     const std::vector<LinearInfo>& all) {
  const auto text = [&](const NativeGemm& native, const std::string& where) {
    return explain_products(recipe, all, o.step, config.micro_batch() * config.training.sequence,
                            common(config.precision.native(), native), where);
  };
  const auto card = [&](int capability) {
    return text(native_gemm(capability),
                fmt::format("compute capability {}.{}", capability / 10, capability % 10));
  };
  if (o.capability >= 0) return card(o.capability);
  if (config.training.backend != "cuda") return text({}, "backend " + config.training.backend);
  try {
    const std::unique_ptr<Device> device = open_device(BackendKind::Cuda);  // throws where there is none
    return card(cuda::kGpuCapability());
  } catch (const Error& e) {
    return fmt::format(
        "\nQuantised products: native or emulated as the card has them, and there is none to ask ({}); "
        "--compute-capability 100 says it for that of a B200\n",
        e.what());
  }
}

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
  fmt::print("{}", products(o, config, recipe, all));
  return 0;
}

}  // namespace

Verb add_explain(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.add_option("--step", o->step, "The training step to explain")->capture_default_str();
  app.add_option(
         "--compute-capability", o->capability,
         "Products as on a card of this compute capability: 80, 90, 100, 120; without it those of the "
         "configuration's backend")
      ->check(CLI::Range(10, 999));
  return [o] { return run(*o); };
}

}  // namespace nibble
