// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "report/report.h"
#include "telemetry/statistics.h"
#include "validate/decide.h"
#include "validate/sequential.h"

/// A comparison that was never run, with the shapes of a real one. For tests of the report alone.
namespace nibble::fixture {

inline double wobble(int i, int salt) {
  const double v = std::sin(i * 12.9898 + salt * 78.233) * 43758.5453;
  return 2 * (v - std::floor(v)) - 1;
}

struct Options {
  double gap = 0.007;  ///< of the candidate at the end
  double aa = 0.002;   ///< size of the A/A gap
  int blocks = 6;
  bool fault = false;
  std::int64_t abort_at = 0;  ///< 0: the run ends
  bool broken = false;        ///< the abort is a candidate that is no longer finite
  int pairs = 1;              ///< from two on without an A/A arm
};

inline ProtocolInput protocol_input() {
  ProtocolInput in{.name = "quickstart",
                   .model = "hybrid-quickstart",
                   .baseline_recipe = "bf16",
                   .candidate_recipe = "nvfp4",
                   .parameters = 2'412'544,
                   .tokens_per_step = 2048};
  in.schedule = {.steps = 300, .warmup_steps = 30, .decay_start = 240};
  in.seed = 42, in.sr_seed = 1;
  return in;
}

inline double smooth_loss(double step) {
  return 3.55 + 3.4 * std::exp(-step / 38.0) + 0.5 * std::exp(-step / 190.0);
}

inline ArmSeries arm(const Protocol& p, const std::string& name, double gap, int salt, std::int64_t last) {
  ArmSeries a;
  a.name = name;
  a.header = {.run = "quickstart",
              .arm = name,
              .recipe = name == "baseline" ? "bf16" : "nvfp4",
              .backend = "cpu",
              .version = "0.1.0",
              .protocol = protocol_hash(p),
              .seed = 42,
              .sr_seed = name == "candidate_aa" ? 77u : 1u,
              .steps = p.steps,
              .tokens_per_step = p.tokens_per_step,
              .parameters = p.parameters,
              .warmup_steps = p.warmup_steps,
              .decay_start = p.decay_start,
              .emulated = name != "baseline"};
  const auto at = [&](std::int64_t step) {
    const double ramp = 1 - std::exp(-static_cast<double>(step) / 60);
    return smooth_loss(static_cast<double>(step)) *
           (1 + gap * ramp * (1 + 0.25 * wobble(static_cast<int>(step / 9), salt)));
  };
  for (std::int64_t step = 1; step <= last; ++step) {
    const int i = static_cast<int>(step);
    // The batch moves every arm alike; the arm's own noise is four times smaller.
    const double loss = at(step) * (1 + 0.012 * wobble(i, 1) + 0.003 * wobble(i, salt + 2));
    a.train.push_back({step,
                       step * p.tokens_per_step,
                       loss,
                       1e-3,
                       0.8 + 0.1 * wobble(i, salt + 3),
                       name == "baseline" ? 11800.0 : 8900.0,
                       name == "baseline" ? 173.0 : 230.0,
                       {},
                       static_cast<std::uint64_t>(7 * step)});
  }
  for (const auto step : p.eval_steps) {
    if (step <= last) a.evals.push_back({step, step * p.tokens_per_step, at(step)});
  }
  return a;
}

/// Statistics of weights, products and the residual stream at one step.
inline void add_rest(RunTelemetry& out, int blocks, std::int64_t step, double t) {
  const char* kLinears[] = {"in_proj", "out_proj", "up", "down"};
  for (int b = 0; b < blocks; ++b) {
    for (int l = 0; l < 4; ++l) {
      const int i = b * 31 + l * 7 + static_cast<int>(step);
      const std::string layer = "blocks." + std::to_string(b) + "." + kLinears[l];
      const bool hot = b == blocks - 1 && l == 3;
      for (const char* gemm : {"fprop", "dgrad", "wgrad"})
        out.gemms.push_back({.step = step,
                             .where = {layer, b, gemm, ""},
                             .output_error = 0.15 + 0.01 * wobble(i, 12) + (hot ? 0.2 * t : 0),
                             .explained = 0.17});
      out.weights.push_back({.step = step,
                             .layer = layer,
                             .block = b,
                             .update_ratio = 1e-3 * (1 + 0.3 * wobble(i, 13)) * (1.2 - t),
                             .gradient_zeros = 0.01 + 0.01 * wobble(i, 14),
                             .gradient_rms = 1e-4,
                             .oscillation = 1.1 + 0.1 * wobble(i, 15) + (hot ? t : 0),
                             .changed = 0.02});
    }
    out.layers.push_back({.step = step,
                          .layer = "blocks." + std::to_string(b) + ".mixer",
                          .residual_rms = 0.5 * (b + 1) * (1 + t),
                          .residual_amax = 4.0 * (b + 1),
                          .attention_logit_max = b % 2 == 1 ? 8 + 6 * t : std::nan("")});
  }
}

inline RunTelemetry telemetry(int blocks, std::int64_t last) {
  RunTelemetry out;
  const struct {
    const char *gemm, *operand;
    double sqnr, flushed;
  } kOperands[] = {{"fprop", "x", 19.6, 0.07},   {"fprop", "w", 18.1, 0.09},    {"dgrad", "dy", 16.2, 0.15},
                   {"dgrad", "w^T", 18.1, 0.09}, {"wgrad", "dy^T", 16.6, 0.12}, {"wgrad", "x^T", 20.1, 0.06}};
  const char* kLinears[] = {"in_proj", "out_proj", "up", "down"};
  for (std::int64_t step = 10; step <= last; step += 10) {
    for (int b = 0; b < blocks; ++b) {
      for (int l = 0; l < 4; ++l) {
        for (const auto& o : kOperands) {
          const int i = b * 31 + l * 7 + static_cast<int>(step);
          const double t = static_cast<double>(step) / static_cast<double>(last);
          QuantEvent e{.step = step,
                       .where = {"blocks." + std::to_string(b) + "." + kLinears[l], b, o.gemm, o.operand}};
          const bool hot = b == blocks - 1 && l == 3 && o.operand[0] == 'd';
          for (const Statistic& one : operand_statistics()) e.*one.value = 0.5;
          e.format = "nvfp4.te", e.amax = 3.1 + 0.4 * wobble(i, 4),
          e.amax_drift = 0.4 * wobble(i, 5) + (hot ? 1.5 * t : 0);
          e.flushed = o.flushed + 0.02 * wobble(i, 6) + (hot ? 0.25 * t : 0.04 * b / blocks);
          e.saturated = 0.062 + 0.005 * wobble(i, 7),
          e.sqnr_db = o.sqnr + 0.7 * wobble(i, 8) - (hot ? 5 * t : 0.8 * b / blocks);
          e.scale_max = 0.0004, e.scale_subnormal = 0.012 + (hot ? 0.1 * t : 0),
          e.scale_zero = hot ? 0.01 * t : 0;
          for (int k = 0; k < 16; ++k) {
            e.scale_log2[k] =
                static_cast<std::int64_t>(4000 * std::exp(-0.35 * std::pow(k - 10 + 2.5 * t, 2)));
          }
          e.mse = 1e-4, e.bias = 2e-4 * wobble(i, 9);
          out.quant.push_back(e);
        }
      }
    }
    add_rest(out, blocks, step, static_cast<double>(step) / static_cast<double>(last));
  }
  return out;
}

inline void add_context(ReportData& d, int blocks) {
  ReportContext& c = d.context;
  c.title = "quickstart";
  c.command = "nibble validate configs/quickstart.toml --backend cpu";
  c.environment = {{"processor", "two cores, AVX-512, AMX"},
                   {"compiler", "g++ 12.2"},
                   {"commit", "0123abc"},
                   {"threads", "2"}};
  for (int b = 0; b < blocks; ++b) {
    for (const char* l : {"in_proj", "out_proj", "up", "down"}) {
      const bool high = b == 0;
      c.plan.push_back({fmt::format("blocks.{}.{}", b, l), "768 x 192", 147456, !high,
                        high ? "bf16" : "nvfp4 1x16 RNE | nvfp4 16x16 RNE",
                        high ? "bf16" : "nvfp4 1x16 SR | nvfp4 16x16 RNE",
                        high ? "bf16" : "nvfp4 1x16 SR RHT | nvfp4 1x16 RNE RHT"});
    }
  }
  c.bf16_share_flops = 1.0 / blocks;
  c.bigram = BigramFigure{4.08, "BPE-1024, interpolated"};
  c.unused_floor =
      "floor.json is of another experiment and was not used (training.steps: 300 there, 60 here)";
}

/// Pairs 2 and up: arms whose gaps scatter around the first pair's.
inline void add_pairs(ReportData& d, Evidence& e, const Options& o) {
  for (int pair = 2; pair <= o.pairs; ++pair) {
    for (const bool is_baseline : {true, false}) {
      const double gap = is_baseline ? 0 : o.gap + 0.003 * wobble(pair, 11);
      d.arms.push_back(
          arm(d.protocol, is_baseline ? "baseline" : "candidate", gap, 10 * pair, d.protocol.steps));
      d.arms.back().pair = pair;
    }
    e.pairs.push_back({pair, d.arms[d.arms.size() - 2].evals, d.arms.back().evals, {}});
  }
}

inline ReportData comparison(const Options& o = {}) {
  ReportData d;
  ProtocolInput input = protocol_input();
  input.pairs = o.pairs, input.aa_arm = o.pairs == 1;
  d.protocol = make_protocol(input);
  d.protocol.contract = {{"data", "5f1c2ab90d3344e1"}, {"initial parameters", "8a00c1d2e3f40516"}};
  const std::int64_t last = o.abort_at > 0 ? o.abort_at : d.protocol.steps;
  d.arms.push_back(arm(d.protocol, "baseline", 0, 10, d.protocol.steps));
  d.arms.push_back(arm(d.protocol, "candidate", o.gap, 20, last));
  Evidence e;
  e.pairs.push_back({1, d.arms[0].evals, d.arms[1].evals, {}});
  if (o.pairs > 1) {
    add_pairs(d, e, o);
  } else if (o.abort_at == 0) {
    d.arms.push_back(arm(d.protocol, "candidate_aa", o.gap + o.aa, 30, last));
    e.pairs[0].candidate_aa = d.arms[2].evals;
  } else {
    const auto& at = d.arms[1].evals.back();
    const double gap = paired_gaps(d.arms[0].evals, d.arms[1].evals).back().gap;
    e.abort = AbortRecord{at.step, at.tokens, gap, d.protocol.abort.limit, "sustained_gap", "candidate"};
    if (o.broken) {
      e.abort = AbortRecord{.step = at.step, .tokens = at.tokens, .rule = "non_finite", .arm = "candidate"};
      e.alarms.push_back({at.step,
                          Severity::Fault,
                          "non_finite",
                          {},
                          "blocks.5.down dgrad operand dy holds a value that is not finite",
                          "candidate"});
    }
  }
  if (o.fault) {
    e.alarms.push_back(
        {20,
         Severity::Fault,
         "gemm_mismatch",
         {"blocks.2.up", 2, "wgrad", ""},
         "blocks.2.up wgrad: the quantised product differs from the BF16 product by 1.41 of its norm"});
  }
  e.alarms.push_back({210,
                      Severity::Warning,
                      "amax_drift",
                      {"blocks.5.down", 5, "dgrad", "dy"},
                      "blocks.5.down dgrad operand dy: amax 9.3 is 1.2 octaves above its recent mean"});
  d.telemetry = telemetry(o.blocks, last);
  d.verdict = decide(d.protocol, e);
  add_context(d, o.blocks);
  return d;
}

}  // namespace nibble::fixture
