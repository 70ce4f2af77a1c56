// SPDX-License-Identifier: Apache-2.0
// A probe as a table, as JSON and as the lines to paste.
#include <fmt/ranges.h>

#include <algorithm>

#include "validate/probe.h"

namespace nibble {
namespace {

std::string percent(double share) { return fmt::format("{:.2f}", 100 * share); }

std::string error_of(const GemmProbe& g) { return g.quantized ? percent(g.error) : "-"; }

/// The operand that suffers most.
double most_flushed(const LayerProbe& l) {
  double most = 0;
  for (const GemmProbe& g : l.gemms) most = std::max({most, g.flushed[0], g.flushed[1]});
  return most;
}

double least_cosine(const LayerProbe& l) {
  double least = 1;
  for (const GemmProbe& g : l.gemms) least = std::min({least, g.cosine[0], g.cosine[1]});
  return least;
}

std::string table(const Probe& p) {
  std::size_t wide = 5;
  for (const LayerProbe& l : p.layers) wide = std::max(wide, l.linear.name.size());
  std::string out = fmt::format("{:<{}}  {:>6}  {:>6} {:>6} {:>6}  {:>7}  {:>7}  {:>10} {:>10}  {:>8}\n",
                                "layer", wide, "FLOPs", "fprop", "dgrad", "wgrad", "flushed", "cosine",
                                "loss alone", "loss kept", "gradient");
  out += fmt::format("{:<{}}  {:>6}  {:>6} {:>6} {:>6}  {:>7}  {:>7}  {:>10} {:>10}  {:>8}\n", "", wide, "%",
                     "%", "%", "%", "%", "", "1e-3 nats", "1e-3 nats", "%");
  for (const LayerProbe& l : p.layers) {
    out +=
        fmt::format("{:<{}}  {:>6}  {:>6} {:>6} {:>6}  {:>7}  {:>7.5f}  {:>+10.3f} {:>+10.3f}  {:>8}{}\n",
                    l.linear.name, wide, percent(l.flops_share), error_of(l.gemms[0]), error_of(l.gemms[1]),
                    error_of(l.gemms[2]), percent(most_flushed(l)), least_cosine(l), 1e3 * l.loss_only,
                    1e3 * l.loss_kept, percent(l.gradient_error), l.kept ? "  kept" : "");
  }
  return out;
}

std::string map_line(const char* name, const MapProbe& m) {
  return fmt::format("  {:<34} {:>6} %  {:>9.5f}  {:>+10.3f}  {:>8}\n", name, percent(m.flops_share), m.loss,
                     1e3 * m.gap, percent(m.gradient_error));
}

Json json_of(const MapProbe& m) {
  return {{"kept", m.kept},
          {"flops_share", m.flops_share},
          {"loss", m.loss},
          {"gap", m.gap},
          {"gradient_error", m.gradient_error}};
}

Json json_of(const GemmProbe& g, Gemm gemm, bool exact) {
  return {{"gemm", name(gemm)},
          {"quantized", g.quantized},
          {"error", g.error},
          {"exact_error", exact ? Json(g.exact_error) : Json(nullptr)},
          {"flushed",
           {{operand_name(gemm, Operand::A), g.flushed[0]}, {operand_name(gemm, Operand::B), g.flushed[1]}}},
          {"cosine",
           {{operand_name(gemm, Operand::A), g.cosine[0]}, {operand_name(gemm, Operand::B), g.cosine[1]}}}};
}

const char* word(Worth w) { return w == Worth::Loss ? "loss" : "gradient"; }

}  // namespace

std::string probe_toml(const Probe& p) {
  std::vector<std::string> quoted;
  for (const std::string& name : p.proposed.kept) quoted.push_back(fmt::format("\"{}\"", name));
  return fmt::format("[precision]\nrecipe = \"{}\"\nbf16_first = 0\nbf16_last = 0\nkeep_bf16 = [{}]\n",
                     p.recipe, fmt::join(quoted, ", "));
}

std::string probe_text(const Probe& p) {
  std::string out = fmt::format(
      "{} at step {}: {} linears, {} tokens measured and as many held out; loss {:.5f} in BF16, {:+.3f}e-3 "
      "nats with "
      "every linear quantised\n\n",
      p.recipe, p.step, p.layers.size(), p.tokens, p.loss_bf16, 1e3 * (p.loss_quantized - p.loss_bf16));
  out += table(p);
  out += fmt::format(
      "\nfprop, dgrad, wgrad: error of the product against that of BF16 operands. flushed, cosine: of the "
      "operand that "
      "suffers most.\nloss alone: what quantising this linear alone costs; loss kept: what keeping it alone "
      "gains. "
      "gradient: error of the whole\ngradient with this linear alone quantised.\n\nHeld-out batches, budget "
      "{} % of the "
      "linears' FLOPs, chosen by {}:\n  {:<34} {:>8}  {:>9}  {:>10}  {:>8}\n",
      percent(p.options.budget), word(p.options.worth), "map", "in BF16", "loss", "1e-3 nats", "gradient");
  out += fmt::format("  {:<34} {:>6} %  {:>9.5f}  {:>10}  {:>8}\n", "bf16", "100", p.held_out_bf16, "0", "0");
  out += map_line("nothing kept", p.nothing) + map_line("by position, same budget", p.by_position) +
         map_line("proposed", p.proposed);
  out += p.better()
             ? "The proposal lies nearer to BF16 than the map by position.\n"
             : "The proposal is NOT nearer to BF16 than the map by position: keep the recipe's own map, or "
               "measure more batches.\n";
  return out + "\n" + probe_toml(p);
}

Json probe_json(const Probe& p) {
  Json layers = Json::array();
  for (const LayerProbe& l : p.layers) {
    Json gemms = Json::array();
    for (const Gemm g : kGemms)
      gemms.push_back(json_of(l.gemms[static_cast<std::size_t>(g)], g, p.options.exact));
    layers.push_back({{"layer", l.linear.name},
                      {"n", l.linear.n},
                      {"k", l.linear.k},
                      {"flops_share", l.flops_share},
                      {"gemms", gemms},
                      {"loss_only", l.loss_only},
                      {"loss_kept", l.loss_kept},
                      {"gradient_error", l.gradient_error},
                      {"worth", l.worth},
                      {"kept", l.kept}});
  }
  return {{"schema", 1},
          {"recipe", p.recipe},
          {"step", p.step},
          {"tokens", p.tokens},
          {"budget", p.options.budget},
          {"by", word(p.options.worth)},
          {"loss_bf16", p.loss_bf16},
          {"loss_quantized", p.loss_quantized},
          {"layers", layers},
          {"held_out",
           {{"loss_bf16", p.held_out_bf16},
            {"nothing", json_of(p.nothing)},
            {"by_position", json_of(p.by_position)},
            {"proposed", json_of(p.proposed)},
            {"better", p.better()}}},
          {"toml", probe_toml(p)}};
}

}  // namespace nibble
