// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "quant/format_names.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

std::string treatment_name(std::size_t i) {
  return i < 26 ? std::string(1, static_cast<char>('A' + i)) : fmt::format("T{}", i);
}

std::string describe_block(const QuantSpec& spec) {
  const int block = info(spec.format).block;
  if (block == 0) return is_quantized(spec.format) ? "tensor" : "-";
  return spec.tile == Tile::Square ? fmt::format("{}x{}", block, block) : fmt::format("1x{}", block);
}

std::string describe_rounding(const QuantSpec& spec) {
  if (!is_quantized(spec.format)) return "-";
  if (spec.eden_group != 0) return fmt::format("MS-EDEN of {}", spec.eden_group);
  switch (spec.rounding) {
    case Rounding::NearestEven:
      return "nearest even";
    case Rounding::Stochastic:
      return fmt::format("stochastic, {} bits", spec.random_bits);
    case Rounding::StochasticExact:
      return "stochastic, exact";
    case Rounding::NearestAway:
      return "nearest, ties away";
  }
  return "?";
}

std::string describe_rotation(const QuantSpec& spec) {
  if (spec.rotation == 0) return "-";
  if (spec.signs == RotationSigns::Redrawn) return fmt::format("RHT-{} redrawn", spec.rotation);
  if (spec.signs == RotationSigns::None || spec.sign_mask == 0)
    return fmt::format("RHT-{} no signs", spec.rotation);
  return spec.rotation == 16 ? fmt::format("RHT-16 signs {:04X}", spec.sign_mask)
                             : fmt::format("RHT-{} fixed", spec.rotation);
}

/// Whose arithmetic, where the format's name does not say it.
std::string describe_arithmetic(const QuantSpec& spec) {
  const std::string text = arithmetic_name(spec);
  return text == info(spec.format).name ? "-" : text;
}

/// Columns as wide as what stands in them.
struct Widths {
  std::size_t format = 10, arithmetic = 12;

  void fit(const QuantSpec& spec) {
    format = std::max(format, info(spec.format).name.size());
    arithmetic = std::max(arithmetic, describe_arithmetic(spec).size());
  }
};

void print_operand(std::string& out, Gemm g, Operand o, const QuantSpec& spec, const Widths& w) {
  fmt::format_to(std::back_inserter(out), "  {:<6} {}  {:<5} {:<5} {:<{}} {:<7} {:<19} {:<18} {:<{}} {}\n",
                 name(g), o == Operand::A ? "A" : "B", operand_name(g, o), operand_axis(g),
                 info(spec.format).name, w.format, describe_block(spec), describe_rounding(spec),
                 describe_rotation(spec), describe_arithmetic(spec), w.arithmetic,
                 draws(spec) ? std::to_string(random_role(g, o)) : "-");
}

struct Plan {
  std::vector<ResolvedLinear> treatments;  ///< distinct ones, in order of appearance
  std::vector<std::size_t> of_linear;
  std::vector<std::string> reasons;
};

Plan make_plan(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step) {
  Plan plan;
  for (const LinearInfo& linear : linears) {
    ResolvedLinear resolved = resolve(recipe, linear, step);
    plan.reasons.push_back(std::exchange(resolved.reason, ""));
    const auto found = std::find(plan.treatments.begin(), plan.treatments.end(), resolved);
    plan.of_linear.push_back(static_cast<std::size_t>(found - plan.treatments.begin()));
    if (found == plan.treatments.end()) plan.treatments.push_back(resolved);
  }
  return plan;
}

void print_treatments(std::string& out, const Plan& plan) {
  Widths w;
  for (const ResolvedLinear& treatment : plan.treatments) {
    for (const Gemm g : kGemms) {
      for (const Operand o : kOperands) w.fit(treatment.spec(g, o));
    }
  }
  for (std::size_t i = 0; i < plan.treatments.size(); ++i) {
    const auto count = std::count(plan.of_linear.begin(), plan.of_linear.end(), i);
    fmt::format_to(std::back_inserter(out), "\nTreatment {} ({} linears)\n", treatment_name(i), count);
    fmt::format_to(std::back_inserter(out), "  {:<6}    {:<5} {:<5} {:<{}} {:<7} {:<19} {:<18} {:<{}} {}\n",
                   "GEMM", "of", "axis", "format", w.format, "block", "rounding", "rotation", "profile",
                   w.arithmetic, "random role");
    for (const Gemm g : kGemms) {
      for (const Operand o : kOperands) print_operand(out, g, o, plan.treatments[i].spec(g, o), w);
    }
    if (plan.treatments[i].fprop.centre || plan.treatments[i].wgrad.centre)
      out += "  The mean over tokens of x and dy is taken out first; its share of the products is exact.\n";
    if (plan.treatments[i].dgrad.requantize || plan.treatments[i].wgrad.requantize)
      out += "  B of dgrad and wgrad is made of what fprop multiplied: its quantised w and x, decoded.\n";
  }
}

void print_linears(std::string& out, const Plan& plan, std::span<const LinearInfo> linears) {
  double all = 0;
  for (const LinearInfo& linear : linears)
    all += static_cast<double>(linear.n) * static_cast<double>(linear.k);
  fmt::format_to(std::back_inserter(out), "\n{:<28} {:>7} {:>7}  {:>6}  {}\n", "linear", "N", "K", "FLOPs",
                 "treatment");
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const LinearInfo& linear = linears[i];
    const double share = static_cast<double>(linear.n) * static_cast<double>(linear.k) / all;
    const std::string reason = plan.reasons[i].empty() ? "" : "  (" + plan.reasons[i] + ")";
    fmt::format_to(std::back_inserter(out), "{:<28} {:>7} {:>7}  {:>5.2f}%  {}{}\n", linear.name, linear.n,
                   linear.k, 100 * share, treatment_name(plan.of_linear[i]), reason);
  }
}

/// What changes in mid-run, and how much of the linears is in the base format from then on.
void print_switches(std::string& out, const Recipe& recipe, std::span<const LinearInfo> linears,
                    std::int64_t step) {
  for (std::size_t i = 0; i < recipe.switches.size(); ++i) {
    const RecipeSwitch& s = recipe.switches[i];
    fmt::format_to(
        std::back_inserter(out),
        "From step {} on {} as in recipe {} instead of {}: {:.1f} % of the linears' FLOPs wholly in "
        "{}; {}.\n",
        s.from_step, gemm_names(s.gemms), s.to.name, recipe_before_switch(recipe, i),
        100 * base_share(recipe, linears, s.from_step).by_flops, info(recipe.base).name,
        step >= s.from_step ? "the plan below has it"
                            : fmt::format("--step {} shows that plan", s.from_step));
  }
}

void print_sums(std::string& out, const Recipe& recipe) {
  if (recipe.accumulate == Accumulation::Truncating)
    out +=
        "Products of two nvfp4 or two mxfp4 operands are summed as Blackwell's FP4 pipe does by its "
        "published "
        "model, cut off 64 products at a time; all others in FP32.\n";
}

void print_attention(std::string& out, const AttentionRecipe& a) {
  if (!a.quantizes()) return;
  fmt::format_to(
      std::back_inserter(out),
      "Attention in the blocks not kept at the ends: q k^T in {}, P v in {}, {}; emulated, rounded to "
      "nearest even.\n",
      info(a.qk).name, info(a.pv).name,
      a.backward ? "their gradients' products too (FP8 gradients in E5M2)"
                 : "gradients' products unquantised on the forward's operands");
}

}  // namespace

std::string explain(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                    double other_flops) {
  std::string out = fmt::format(
      "Recipe {} {}: {}\nStep {}. Residual stream {}, its gradient {}, logits {}; embeddings, head, norms, "
      "softmax, scan and convolution are never quantised.\n",
      recipe.name, recipe.source, recipe.summary, step, info(recipe.residual).name,
      info(recipe.residual_gradient).name, info(recipe.logits).name);
  print_switches(out, recipe, linears, step);
  print_attention(out, recipe.attention);
  print_sums(out, recipe);
  const Plan plan = make_plan(recipe, linears, step);
  print_treatments(out, plan);
  print_linears(out, plan, linears);
  const BaseShare share = base_share(recipe, linears, step);
  double linear_flops = 0;
  for (const LinearInfo& l : linears)
    linear_flops += 6.0 * static_cast<double>(l.n) * static_cast<double>(l.k);
  const std::string_view base = info(recipe.base).name;
  const double high = (share.by_flops * linear_flops + other_flops) / (linear_flops + other_flops);
  fmt::format_to(
      std::back_inserter(out),
      "\nLinears wholly in {}: {} of {} = {:.1f} % by count, {:.1f} % by FLOPs.\n"
      "All FLOPs of a token outside quantised linears (head, attention and scan included): {:.1f} % of "
      "{:.4g}.\n",
      base, share.kept, share.linears, 100 * share.by_count, 100 * share.by_flops, 100 * high,
      linear_flops + other_flops);
  return out;
}

}  // namespace nibble
