// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/quantize_file.h"

namespace nibble {
namespace {

struct Options {
  MachineOptions machine;
  QuantizeFile request;
  std::optional<std::uint64_t> seed;
  bool json = false;
};

ExitCode run(const Options& o) {
  QuantizeFile request = o.request;
  check_usage(!o.seed || request.choices.round != "rne",
              "--seed has no effect with --round rne; add --round sr or sr-exact, or leave --seed out");
  request.seed = o.seed.value_or(0);
  Workplace here(o.machine);
  Stream& stream = here.stream;
  const QuantizeReport report = quantize_file(stream, request);
  fmt::print("{}", o.json ? dump_json(quantize_json(report)) : quantize_table(report));
  return 0;
}

constexpr const char* kFooter =
    R"(Every tensor of two or more axes in F32 or BF16 is read as a matrix [leading axes, last axis] and quantised.
Columns of the table:
  amax               largest magnitude of what is quantised (after transposition and rotation)
  SQNR dB, MSE       decoded values against what was quantised
  flushed %          of the non-zero elements, those that decode to zero (values, not codes)
  at max %           elements whose code is the format's largest
  0 blocks           blocks that held nothing but zeros, of all blocks
  scales max/subn/0  block scales at the largest value, subnormal, zero although the block held numbers
  bias               sum of (decoded - x) sign(x) over sum of |x|: negative shrinks
With --out, for each tensor NAME: NAME.codes (4-bit: U8 [rows, cols/2], low nibble = even column; 8-bit: F8_E4M3
or F8_E5M2 [rows, cols]), NAME.scales (NVFP4: F8_E4M3 [rows, cols/16]; MX: F8_E8M0 [rows, cols/32]), NAME.amax
(F32 [1]) and, for fp8, NAME.scale_inv (F32 [1]). Sizes that blocks do not divide are rounded up.
Tensors that are skipped are not copied.
Examples:
  nibble quantize model.safetensors --format nvfp4.te --tile 16x16
  nibble quantize model.safetensors --layout column --rht --round sr --seed 7 --tensor '*mlp*' --out q.safetensors
Exit codes: 0 done; 1 error; 2 bad usage; 5 a NaN or an infinity was found.)";

}  // namespace

Verb add_quantize(CLI::App& app) {
  auto o = std::make_shared<Options>();
  QuantizeChoices& c = o->request.choices;
  std::string formats;
  for (const std::string& name : quantize_format_names()) formats += (formats.empty() ? "" : ", ") + name;
  app.add_option("IN", o->request.in, "A .safetensors file, or a Hugging Face folder")->required();
  app.add_option("--format", c.format, "One of " + formats)->capture_default_str();
  app.add_option("--tile", c.tile, "NVFP4 blocks: 1x16 (the default) or 16x16, as weights have them");
  app.add_option("--layout", c.layout, "row, or column: the transpose, with blocks along the rows of x")
      ->capture_default_str();
  app.add_flag("--rht", c.rht, "Random Hadamard transform of 16 along the block axis, before the cast");
  app.add_option("--round", c.round,
                 "rne (nearest even), sr (stochastic, 8 random bits as the hardware has), sr-exact (24 bits)")
      ->capture_default_str();
  app.add_option("--seed", o->seed, "Of stochastic rounding; the same seed gives the same bytes (default 0)");
  app.add_option(
         "--non-finite", c.non_finite,
         "NaN and infinities: detect (stop and name the element) or as-te (what Transformer Engine does)")
      ->capture_default_str();
  app.add_option("--tensor", o->request.tensors,
                 "Only tensors whose name matches this shell pattern (* ? [..]); may be repeated");
  app.add_option("--out", o->request.out, "Write codes and scales to this .safetensors file");
  app.add_flag("--json", o->json, "Print the statistics as JSON");
  add_machine_options(app, o->machine);
  app.footer(kFooter);
  return [o] { return run(*o); };
}

}  // namespace nibble
