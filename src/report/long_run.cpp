// SPDX-License-Identifier: Apache-2.0
#include "report/long_run.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "report/report.h"
#include "telemetry/jsonl_sink.h"
#include "validate/decide.h"

namespace nibble {
namespace {

/// A number in [-1, 1) that looks random: a hash of its arguments.
double wobble(std::uint64_t a, std::uint64_t b) {
  std::uint64_t h = a * 0x9E3779B97F4A7C15u ^ (b + 1) * 0xC2B2AE3D27D4EB4Fu;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  h ^= h >> 32;
  return static_cast<double>(h >> 11) * 0x1p-52 - 1;
}

Protocol protocol_of(const LongRun& run) {
  ProtocolInput in{.name = "long-run",
                   .model = "invented",
                   .baseline_recipe = "bf16",
                   .candidate_recipe = "nvfp4",
                   .parameters = 1'000'000'000,
                   .tokens_per_step = 1'048'576};
  in.schedule = {.steps = run.steps, .warmup_steps = run.steps / 50, .decay_start = run.steps * 4 / 5};
  in.seed = 1, in.sr_seed = 1;
  return make_protocol(in);
}

double loss_at(std::int64_t step, std::int64_t steps, double gap, std::uint64_t salt) {
  const double t = static_cast<double>(step) / static_cast<double>(steps);
  return (2.4 + 6 * std::exp(-40 * t) + 0.8 * std::exp(-4 * t)) *
         (1 + gap * t + 0.0004 * wobble(static_cast<std::uint64_t>(step), salt));
}

std::vector<EvalPoint> write_metrics(const std::filesystem::path& path, const Protocol& p, const ArmSpec& arm,
                                     double gap, std::uint64_t salt) {
  MetricsJsonl log(path);
  log.on(HeaderEvent{.run = p.name,
                     .arm = arm.name,
                     .recipe = arm.recipe,
                     .backend = "cpu",
                     .protocol = protocol_hash(p),
                     .seed = arm.seed,
                     .sr_seed = arm.sr_seed,
                     .steps = p.steps,
                     .tokens_per_step = p.tokens_per_step,
                     .parameters = p.parameters,
                     .warmup_steps = p.warmup_steps,
                     .decay_start = p.decay_start,
                     .emulated = arm.name != "baseline"});
  std::vector<EvalPoint> evals;
  for (std::int64_t step = 1; step <= p.steps; ++step) {
    const auto s = static_cast<std::uint64_t>(step);
    log.on(TrainEvent{.step = step,
                      .tokens = step * p.tokens_per_step,
                      .loss = loss_at(step, p.steps, gap, salt) * (1 + 0.01 * wobble(s, 1)),
                      .lr = 3e-4,
                      .grad_norm = 0.5 + 0.1 * wobble(s, salt + 5),
                      .tokens_per_s = 1e6 * (1 + 0.01 * wobble(s, 2)),
                      .step_ms = 1050,
                      .batch_hash = s});
    if (!std::binary_search(p.eval_steps.begin(), p.eval_steps.end(), step)) continue;
    const EvalEvent e{step, step * p.tokens_per_step, loss_at(step, p.steps, gap, salt), 1 << 20};
    log.on(e);
    evals.push_back({e.step, e.tokens, e.loss});
  }
  return evals;
}

QuantEvent operand_at(const LongRun& run, std::int64_t step, std::int64_t layer, const OperandName& where,
                      std::uint64_t role) {
  const auto s = static_cast<std::uint64_t>(step), salt = static_cast<std::uint64_t>(layer) * 8 + role;
  QuantEvent e{.step = step, .where = where, .format = "nvfp4.te"};
  for (const Statistic& one : operand_statistics()) e.*one.value = 0.5 + 0.1 * wobble(s, salt + 77);
  const bool spike = step == run.spike_step && layer == 0 && role == 2;
  e.amax = 3 + wobble(s, salt);
  e.amax_drift = 0.4 * wobble(s, salt + 11);
  e.flushed = 0.1 + 0.03 * wobble(s, salt + 22);
  e.sqnr_db = spike ? 1
                    : 18.5 + 0.5 * wobble(s, salt + 33) -
                          2.0 * static_cast<double>(layer) / static_cast<double>(run.layers);
  e.scale_max = 4e-4, e.scale_subnormal = 0.012, e.scale_zero = 0;
  for (std::size_t k = 0; k < 16; ++k) {
    e.scale_log2[k] =
        static_cast<std::int64_t>(1e6 * std::exp(-0.35 * std::pow(static_cast<double>(k) - 9, 2)));
    e.codes[k] = static_cast<std::int64_t>(1e6 * (1 + 0.5 * wobble(k, salt)));
  }
  return e;
}

void write_telemetry(const std::filesystem::path& path, const LongRun& run) {
  const struct {
    const char *gemm, *operand;
  } kOperands[] = {{"fprop", "x"},   {"fprop", "w"},    {"dgrad", "dy"},
                   {"dgrad", "w^T"}, {"wgrad", "dy^T"}, {"wgrad", "x^T"}};
  const char* kLinears[] = {"attention.qkv", "attention.out", "mlp.up", "mlp.down"};
  TelemetryJsonl log(path);
  log.on(HeaderEvent{.run = "long-run", .arm = "candidate"});
  for (std::int64_t step = run.every; step <= run.steps; step += run.every) {
    for (std::int64_t l = 0; l < run.layers; ++l) {
      const int block = static_cast<int>(l / 4);
      const std::string layer = fmt::format("blocks.{}.{}", block, kLinears[l % 4]);
      std::uint64_t role = 0;
      for (const auto& o : kOperands)
        log.on(operand_at(run, step, l, {layer, block, o.gemm, o.operand}, role++));
      const double noise = wobble(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(l) + 900);
      for (const char* gemm : {"fprop", "dgrad", "wgrad"})
        log.on(GemmEvent{step, {layer, block, gemm, ""}, 0.15 + 0.02 * noise, 0.17});
      log.on(WeightEvent{step, layer, block, 1e-3 * (1 + 0.3 * noise), 0.01, 1e-4, 1.1 + 0.1 * noise, 0.02});
      if (l % 2 == 1) log.on(LayerEvent{step, layer, 2 + noise, 20 + noise, 9 + 3 * noise});
    }
  }
}

}  // namespace

void write_long_run(const std::filesystem::path& folder, const LongRun& run) {
  check(!std::filesystem::exists(folder), "{} exists; name a new folder", folder.string());
  const Protocol p = protocol_of(run);
  Evidence evidence;
  evidence.pairs.push_back({.pair = 1, .baseline = {}, .candidate = {}, .candidate_aa = {}});
  PairData& pair = evidence.pairs.front();
  for (const ArmSpec& arm : p.arms) {
    const std::filesystem::path directory = folder / arm.directory;
    std::filesystem::create_directories(directory);
    const bool is_baseline = arm.name == "baseline", is_candidate = arm.name == "candidate";
    std::vector<EvalPoint>& curve = is_baseline    ? pair.baseline
                                    : is_candidate ? pair.candidate
                                                   : pair.candidate_aa;
    curve = write_metrics(directory / "metrics.jsonl", p, arm, is_baseline ? 0 : 0.006,
                          is_baseline    ? 3
                          : is_candidate ? 4
                                         : 5);
    if (is_candidate) write_telemetry(directory / "telemetry.jsonl", run);
  }
  write_file(folder / "protocol.json", canonical_text(p));
  write_file(folder / "verdict.json", verdict_to_json(decide(p, evidence)));
  ReportContext context{.title = "long-run (invented)", .command = "nibble bench --report"};
  write_file(folder / "report_context.json", context_to_json(context));
}

}  // namespace nibble
