// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "models/spec.h"

namespace nibble {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::string precisions(const LinearWork& l) {
  std::vector<std::string> names;
  for (const Gemm g : kGemms) names.emplace_back(name(rate_of(l.resolved.gemm(g))));
  if (names[0] == names[1] && names[1] == names[2]) return names[0];
  return fmt::format("{}", fmt::join(names, "/"));
}

std::string kinds_text(const Plan& p) {
  std::string out = fmt::format("  {:<16}{:<18}{:>14}{:>16}{:>9}\n", "layer", "products in", "parameters",
                                "GFLOP a token", "share");
  for (const KindShare& k : shares_by_kind(p.work, static_cast<double>(p.request.layout.sequence)))
    out += fmt::format("  {:<16}{:<18}{:>14.0f}{:>16.4g}{:>8.1f} %\n", k.kind, k.precision, k.parameters,
                       k.flops * 1e-9, 100 * k.share);
  return out;
}

std::string time_text(const Plan& p) {
  std::string out = fmt::format("where a step's {:.1f} ms go, on each GPU\n", 1e3 * p.time.seconds);
  for (const TimeItem& t : p.time.items)
    out += fmt::format("  {:<52}{:>12.3f} ms{:>7.1f} %  {}\n", t.name, 1e3 * t.seconds,
                       100 * t.seconds / p.time.seconds, t.note);
  return out;
}

std::string memory_text(const Plan& p) {
  std::string out = fmt::format(
      "memory of the fullest GPU: {:.1f} of {:.1f} GiB usable; largest micro-batch that "
      "fits: {}\n",
      p.memory.total / kGib, p.memory.usable / kGib, p.largest_micro_batch.value_or(0));
  for (const MemoryItem& m : p.memory.items)
    if (m.bytes > 0) out += fmt::format("  {:<52}{:>10.2f} GiB\n", m.name, m.bytes / kGib);
  return out;
}

std::string ratio_text(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:.2f}", ratio) : "no finite number";
}

std::string loss_text(const Plan& p) {
  const EqualLoss& e = p.equal;
  std::string out = fmt::format("{} tokens take {}", tokens_text(p.request.tokens), hours_text(p.hours));
  if (p.request.price > 0) out += fmt::format(", cost {:.0f}", p.cost);
  out += fmt::format(", {:.1f} MWh of board power\n", p.energy_mwh);
  out += fmt::format("equal loss: a gap of {:.2f} % ({})\n", 100 * p.gap.relative, p.gap.source);
  if (p.gap.relative > 0) {
    out += fmt::format(
        "  to the end in {}: {} times the tokens, {} (the law overstates long "
        "runs: 1.53 where 1.36 was published)\n",
        p.work.recipe, ratio_text(e.token_ratio), hours_text(e.hours));
    if (e.switched_hours > 0)
      out +=
          fmt::format("  the last {:.0f} % of the tokens in BF16, which closed the gap at 12B and 10T: {}\n",
                      100 * p.request.switch_share, hours_text(e.switched_hours));
  }
  return out;
}

bool is_recipe(const Plan& p, const char* name) { return p.work.recipe == name; }

}  // namespace

std::vector<KindShare> shares_by_kind(const Workload& work, double sequence) {
  std::map<std::pair<std::string, std::string>, KindShare> kinds;
  double active = 0;
  for (const LinearWork& l : work.linears) {
    const double size = static_cast<double>(l.info.n) * static_cast<double>(l.info.k);
    KindShare& k = kinds[{l.info.kind, precisions(l)}];
    k.kind = l.info.kind;
    k.precision = precisions(l);
    k.parameters += size;
    k.flops += 6 * size;
    active += size;
  }
  std::vector<KindShare> all;
  for (auto& [key, k] : kinds) {
    k.parameters *= work.linear_parameters / active;
    all.push_back(k);
  }
  const double head = static_cast<double>(work.vocab) * static_cast<double>(work.d_model);
  all.push_back({"head", "bf16", head, work.head_flops()});
  all.push_back({"attention", "bf16", 0, work.attention_flops(sequence)});
  if (work.scan_state > 0) all.push_back({"scan", "bf16", 0, work.scan_flops()});
  for (KindShare& k : all) k.share = k.flops / work.flops(sequence);
  return all;
}

std::vector<std::string> honest_lines(const Plan& p) {
  const Hardware& h = p.request.hardware;
  const RateShares shares = linear_shares(p.work);
  std::vector<std::string> lines = p.warnings;
  const double fp4 = shares.share[static_cast<int>(Rate::Fp4)];
  if (fp4 > 0 && h.native(Rate::Fp4)) {
    const double kept = shares.share[0];
    lines.push_back(
        fmt::format("{:.0f} % of the linears' FLOPs stay in BF16: at the peaks their products gain {:.2f}x "
                    "over BF16, not {:.1f}x",
                    100 * kept, product_gain_cap(kept, h, Rate::Fp4), h.fp4.dense / h.bf16.dense));
    lines.push_back(
        "published steps in NVFP4 are 1.0 to 1.5 times as fast as 8-bit ones, not 2 to 3 times: large dense "
        "models gain "
        "most, hybrids and small models hardly");
    lines.push_back(
        "attention, head, norms, optimizer and traffic between GPUs do not shrink with the format of the "
        "linears");
  }
  return lines;
}

std::string plan_text(const Plan& p) {
  const double sequence = static_cast<double>(p.request.layout.sequence);
  std::string out = fmt::format(
      "{}: {:.0f} parameters, {:.4g} GFLOP a token at T = {} ({:.5g} TFLOP a sample; causal attention "
      "counted as half, "
      "recomputation never)\n",
      p.work.model, p.work.parameters, p.work.flops(sequence) * 1e-9, p.request.layout.sequence,
      p.work.flops(sequence) * sequence * 1e-12);
  if (!p.request.model.extra_what.empty())
    out += fmt::format("  of them {} in {}\n", p.request.model.extra_parameters, p.request.model.extra_what);
  out += kinds_text(p);
  out += fmt::format("\n{} on {} ({}): {}\n", p.work.recipe, p.request.hardware.name,
                     p.request.hardware.summary, p.request.layout.text());
  out += fmt::format(
      "  {:.0f} tokens/s/GPU, {:.0f} model TFLOP/s/GPU: {:.1f} % of the dense BF16 peak, {:.1f} % of {:.0f}, "
      "the dense "
      "peak of the products actually used\n\n",
      p.time.tokens_per_gpu_s, p.time.model_tflops, 100 * p.time.mfu_bf16, 100 * p.time.mfu_mix,
      p.time.mix_peak);
  out += time_text(p) + "\n" + memory_text(p) + "\n" + loss_text(p);
  for (const std::string& line : honest_lines(p)) out += "note: " + line + "\n";
  return out;
}

std::string compare_text(const std::vector<Plan>& plans) {
  std::string out =
      fmt::format("{:<12}{:>12}{:>9}{:>9}{:>10}{:>11}{:>8}{:>12}{:>12}", "recipe", "tok/s/GPU", "TFLOP/s",
                  "MFU mix", "GiB a GPU", "time", "tokens", "equal loss", "and switch");
  std::vector<const Plan*> bases;
  for (const Plan& p : plans) {
    if (!is_recipe(p, "bf16") && !is_recipe(p, "mxfp8") && !p.work.recipe.starts_with("fp8")) continue;
    bases.push_back(&p);
    out += fmt::format("{:>16}", "over " + p.work.recipe);
  }
  out += "\n";
  for (const Plan& p : plans) {
    out += fmt::format("{:<12}{:>12.0f}{:>9.0f}{:>7.1f} %{:>10.1f}{:>11}{:>8}{:>12}{:>12}", p.work.recipe,
                       p.time.tokens_per_gpu_s, p.time.model_tflops, 100 * p.time.mfu_mix,
                       p.memory.total / kGib, hours_text(p.hours),
                       std::isfinite(p.equal.token_ratio) ? ratio_text(p.equal.token_ratio) : "inf",
                       std::isfinite(p.equal.hours) ? hours_text(p.equal.hours) : "never",
                       p.equal.switched_hours > 0 ? hours_text(p.equal.switched_hours) : "-");
    for (const Plan* b : bases)
      out += fmt::format("{:>16}", fmt::format("{:.2f} ({:.2f})", b->hours / p.hours,
                                               b->equal.best_hours() / p.equal.best_hours()));
    out += "\n";
  }
  return out +
         "\"over\": speed-up in tokens/s, and in brackets in time to equal loss, the better of staying and "
         "switching.\n";
}

std::string sweep_text(const std::vector<SweepPoint>& points) {
  std::string out = fmt::format("{:>7}  {:>10}{:>10}{:>13}{:>13}{:>12}  {}\n", "GPUs", "tok/s/GPU", "Mtok/s",
                                "time", "equal loss", "cost", "layout");
  for (const SweepPoint& s : points) {
    if (!s.plan) {
      out += fmt::format("{:>7}  {}\n", s.gpus, s.why);
      continue;
    }
    const Plan& p = *s.plan;
    const ParallelLayout& l = p.request.layout;
    out += fmt::format("{:>7}  {:>10.0f}{:>10.2f}{:>13}{:>13}{:>12.0f}  dp {} tp {} pp {} micro {} {}{}\n",
                       s.gpus, p.time.tokens_per_gpu_s,
                       p.time.tokens_per_gpu_s * static_cast<double>(s.gpus) * 1e-6, hours_text(p.hours),
                       hours_text(p.equal.best_hours()), p.cost, l.dp(), l.tp, l.pp, l.micro_batch,
                       l.recompute == Recompute::None ? "" : fmt::format("recompute {}", name(l.recompute)),
                       l.fsdp ? " sharded" : "");
  }
  return out;
}

double parse_tokens(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const std::map<std::string, double> units = {{"", 1},    {"k", 1e3}, {"K", 1e3}, {"M", 1e6},
                                               {"G", 1e9}, {"B", 1e9}, {"T", 1e12}};
  const auto it = units.find(unit);
  check_usage(end != text.c_str() && it != units.end() && value > 0,
              "\"{}\" is not a number of tokens; write 300M, 50G (or 50B), 10T or 1e12", text);
  return value * it->second;
}

std::string tokens_text(double tokens) {
  if (tokens >= 1e12) return fmt::format("{:g}T", tokens * 1e-12);
  if (tokens >= 1e9) return fmt::format("{:g}G", tokens * 1e-9);
  return fmt::format("{:g}M", tokens * 1e-6);
}

std::string hours_text(double hours) {
  if (!std::isfinite(hours)) return "never";
  if (hours < 48) return fmt::format("{:.1f} h", hours);
  return fmt::format("{:.1f} days", hours / 24);
}

}  // namespace nibble
