// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/environment.h"
#include "cli/selftest/selftest.h"
#include "io/file.h"
#include "models/parameters.h"
#include "report/report.h"
#include "train/quant_monitor.h"
#include "validate/run_arms.h"

namespace nibble {
namespace {

struct Options {
  ConfigOptions config;
  MachineOptions machine;
  bool resume = false, quiet = false;
  std::string noise_floor;
};

std::string operand_text(const QuantSpec& s) {
  if (!is_quantized(s.format)) return std::string(info(s.format).name);
  const std::string rotation = s.rotation == 0    ? ""
                               : s.rotation == 16 ? " RHT"
                                                  : fmt::format(" RHT-{}", s.rotation);
  return fmt::format("{} {} {}{}", format_name(s), s.tile == Tile::Square ? "16x16" : "1x16",
                     is_stochastic(s.rounding) ? "SR" : "RNE", rotation);
}

std::string gemm_text(const GemmRecipe& g) {
  const std::string a = operand_text(g.a), b = operand_text(g.b);
  return a == b ? a : a + " | " + b;
}

PlanRow plan_row(const Recipe& recipe, const LinearInfo& l) {
  const ResolvedLinear r = resolve(recipe, l, 0);
  return {.layer = l.name,
          .shape = fmt::format("{} x {}", l.n, l.k),
          .parameters = l.n * l.k,
          .quantised = r.quantized(),
          .fprop = gemm_text(r.fprop),
          .dgrad = gemm_text(r.dgrad),
          .wgrad = gemm_text(r.wgrad)};
}

ReportContext context_of(const Options& o, const RunSetup& setup, BackendKind backend) {
  const RunConfig& c = setup.config();
  const Recipe recipe = candidate_recipe(c);
  ReportContext context;
  context.title = c.training.name;
  context.command = command_line("validate", o.config, o.machine);
  if (!o.noise_floor.empty()) context.command += " --noise-floor " + o.noise_floor;
  context.environment = environment_of(backend, static_cast<int>(c.training.threads));
  const std::vector<LinearInfo> all = linears(setup.model());
  for (const LinearInfo& l : all) context.plan.push_back(plan_row(recipe, l));
  context.bf16_share_flops = base_share(recipe, all, 0).by_flops;
  const NgramBaseline ngrams = setup.ngrams();
  context.bigram = BigramFigure{
      .loss = ngrams.bigram,
      .text = fmt::format(
          "interpolated bigram model of the same {} training tokens, on all {} validation tokens; "
          "unigram {:.3f}",
          setup.data().train.size(), setup.data().validation.size(), ngrams.unigram)};
  return context;
}

void print_intro(const RunSetup& setup, const Protocol& p, const ReportContext& context) {
  const RunConfig& c = setup.config();
  const SampleOrder order = setup.order(static_cast<std::uint64_t>(c.training.seed));
  fmt::print("{}: {} parameters, {} steps of {} tokens ({:.1f} epochs of {} tokens), {} arms\n", p.model,
             p.parameters, p.steps, p.tokens_per_step, order.epochs(c.training.steps, c.training.batch),
             setup.data().train.size(), p.arms.size());
  fmt::print("limit {:+.2f} % at the end; protocol {}; bigram model of the same tokens: {:.4f} nats\n",
             100 * p.final_window().limit, protocol_hash(p), context.bigram->loss);
}

/// The floor named on the command line, which must be of this experiment, or that of the configuration. That
/// one is left out where a key was changed that it was not measured under: said in a sentence, and in full
/// in `unused`.
std::optional<NoiseFloor> stored_floor(const Options& o, const RunSetup& setup, std::string& unused) {
  if (!o.noise_floor.empty()) return read_noise_floor(o.noise_floor);
  const ProtocolSection& protocol = setup.config().protocol;
  if (protocol.noise_floor.empty()) return {};
  const std::filesystem::path named = protocol.noise_floor,
                              beside = std::filesystem::path(o.config.path).parent_path() / named;
  const NoiseFloor floor = read_noise_floor(std::filesystem::exists(named) ? named : beside);
  const std::vector<FloorDifference> differences = floor_differences(setup, floor);
  if (differences.empty()) return floor;
  for (const FloorDifference& d : differences) unused += (unused.empty() ? "" : "; ") + d.text();
  unused = fmt::format("{} is of another experiment and was not used ({})", floor.file, unused);
  fmt::print("{}\n", unused_floor_sentence(differences, protocol.aa_arm));
  return {};
}

ExitCode run(const Options& o) {
  const RunConfig config = load_with(o.config, o.machine);
  const bool resume = o.resume || config.checkpoint.resume;
  const SignalGuard signals;
  const RunSetup setup(config);
  Workplace here(config);
  Stream& stream = here.stream;
  if (quantizes(candidate_recipe(config))) require_sound_quantisation(stream);
  std::string unused_floor;
  const std::optional<NoiseFloor> noise_floor = stored_floor(o, setup, unused_floor);
  // Refuses what cannot be judged, before anything is touched.
  const Protocol protocol = protocol_of(setup, noise_floor);
  const std::filesystem::path directory = run_directory(config);
  if (const auto moved = open_run_directory(directory, resume))
    fmt::print("{} held an earlier run: it is now {}\n", directory.string(), moved->string());
  ReportContext context = context_of(o, setup, stream.kind());
  context.unused_floor = unused_floor;
  write_file(directory / "report_context.json", context_to_json(context));
  print_intro(setup, protocol, context);

  const auto console = [&](const ArmSpec&) -> std::shared_ptr<ConsoleSink> {
    if (o.quiet) return nullptr;
    return std::make_shared<ConsoleSink>(console_options_for(stdout, config.metrics.progress));
  };
  const Comparison comparison = run_comparison(setup, stream, resume, signals, console, noise_floor);
  if (!comparison.finished) {
    fmt::print("stopped by signal {}; state saved. Continue with: {} --resume\n", comparison.signal,
               context.command);
    return 128 + comparison.signal;
  }
  const ReportData data = read_run(directory);
  write_report(directory / "report.html", data);
  fmt::print("\n{}", summary_text(data));
  fmt::print("report: {}\n", (directory / "report.html").string());
  return exit_code(comparison.verdict.outcome);
}

}  // namespace

Verb add_validate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_config_options(app, o->config);
  add_machine_options(app, o->machine);
  app.add_flag("--resume", o->resume, "Continue an interrupted comparison, bit for bit");
  app.add_flag("--quiet", o->quiet, "No progress lines");
  app.add_option(
      "--noise-floor", o->noise_floor,
      "noise_floor.json of an earlier run under another seed: its A/A arms count for the noise too");
  app.footer(
      "Writes runs/NAME/{protocol.json, baseline/, candidate/, candidate_aa/, verdict.json, "
      "noise_floor.json, report.html};\nNAME is the configuration's training.name. `nibble watch runs/NAME` "
      "shows it meanwhile.\n"
      "Exit code: 0 pass, 3 fail or aborted, 4 inconclusive, 5 the baseline was not finite.");
  return [o] { return run(*o); };
}

}  // namespace nibble
