// SPDX-License-Identifier: Apache-2.0
#include "models/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "cli/cli.h"

namespace nibble {
namespace {

struct Options {
  MachineOptions machine;
  std::string directory, golden, recipe = "fp32";
  std::size_t rows = 5;
};

void print_row(const char* what, double error, double bound, bool bounds_apply) {
  if (bounds_apply)
    fmt::print("  {:<28} {:>10.3e}   bound {:.0e}   {}\n", what, error, bound,
               error <= bound ? "ok" : "OUTSIDE");
  else
    fmt::print("  {:<28} {:>10.3e}\n", what, error);
}

ExitCode run(const Options& o) {
  const std::filesystem::path golden = o.golden.empty()
                                           ? std::filesystem::path(o.directory) / "golden.safetensors"
                                           : std::filesystem::path(o.golden);
  Workplace here(o.machine);
  Stream& stream = here.stream;
  const VerifyReport r = verify_model(o.directory, golden, stream, find_recipe(o.recipe));
  fmt::print("{} on {}, recipe {}, against {}\n", o.directory, name_of(stream.kind()), o.recipe,
             golden.string());
  fmt::print("  loss {:.9f}, golden {:.9f}\n", r.loss, r.golden_loss);
  print_row("logits / largest logit", r.logit_error, VerifyReport::kLogitBound, r.bounds_apply);
  print_row("loss, relative", r.loss_error, VerifyReport::kLossBound, r.bounds_apply);
  if (r.gradients.empty())
    fmt::print("  the golden file has no gradients\n");
  else
    print_row("worst gradient, Frobenius", r.worst_gradient(), VerifyReport::kGradBound, r.bounds_apply);
  for (std::size_t i = 0; i < std::min(o.rows, r.gradients.size()); ++i)
    fmt::print("    {:.3e}  {}\n", r.gradients[i].error, r.gradients[i].name);
  if (!r.bounds_apply) {
    fmt::print("  the bounds are those of FP32: under {} these are measurements, not a test\n", o.recipe);
    return 0;
  }
  return r.inside_bounds() ? 0 : 1;
}

}  // namespace

Verb add_verify_model(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("HF_DIR", o->directory, "Hugging Face folder: config.json and safetensors")->required();
  app.add_option(
      "--golden", o->golden,
      "input_ids, logits, loss and grad.<parameter> made elsewhere; default HF_DIR/golden.safetensors");
  app.add_option("--recipe", o->recipe, "Precision recipe; the bounds are for fp32")->capture_default_str();
  app.add_option("--rows", o->rows, "Worst gradients to list")->capture_default_str();
  add_machine_options(app, o->machine);
  app.footer("Exit 0 when inside the bounds: logits 5e-5 of the largest, loss 2e-6, gradients 1e-4.");
  return [o] { return run(*o); };
}

}  // namespace nibble
