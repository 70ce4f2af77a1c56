// SPDX-License-Identifier: Apache-2.0
#include "recipe/resolve.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {
namespace {

GemmRecipe& gemm_of(ResolvedLinear& linear, Gemm g) {
  return g == Gemm::Fprop ? linear.fprop : g == Gemm::Dgrad ? linear.dgrad : linear.wgrad;
}

std::string reason_to_keep(const Recipe& recipe, const LinearInfo& linear) {
  const KeptBlocks kept = kept_blocks(recipe, linear.blocks);
  if (linear.block < kept.first) return fmt::format("first {} of {} blocks", kept.first, linear.blocks);
  if (linear.block >= linear.blocks - kept.last)
    return fmt::format("last {} of {} blocks", kept.last, linear.blocks);
  for (const std::string& pattern : recipe.keep_bf16) {
    if (glob_match(pattern, linear.name)) return fmt::format("pattern \"{}\"", pattern);
  }
  return "";
}

void apply(const RecipeOverride& o, QuantSpec& spec) {
  if (o.format && *o.format != spec.format) {
    const QuantSpec before = spec;
    spec = {.format = *o.format};
    // A change of format keeps how it is rounded and whose arithmetic it follows, but BF16 and FP32 have
    // neither.
    if (is_quantized(spec.format) && is_quantized(before.format)) {
      spec = before;
      spec.format = *o.format;
    }
  }
  if (!is_quantized(spec.format)) return;
  if (o.tile) spec.tile = *o.tile;
  if (o.rounding) spec.rounding = *o.rounding;
  if (o.rotation) spec.rotation = static_cast<std::uint16_t>(*o.rotation);
}

void apply_overrides(const Recipe& recipe, const LinearInfo& linear, std::int64_t step, ResolvedLinear& out) {
  for (const RecipeOverride& o : recipe.overrides) {
    if (step < o.from_step || step >= o.until_step || !glob_match(o.layers, linear.name)) continue;
    for (const Gemm g : kGemms) {
      if (o.gemm && *o.gemm != g) continue;
      if (!o.operand || *o.operand == Operand::A) apply(o, gemm_of(out, g).a);
      if (!o.operand || *o.operand == Operand::B) apply(o, gemm_of(out, g).b);
    }
  }
  // A rotation of one operand cancels only against the same rotation of the other. Where an override leaves
  // one operand of a GEMM unquantised, that operand cannot be rotated, so neither is.
  for (const Gemm g : kGemms) {
    GemmRecipe& gemm = gemm_of(out, g);
    if (!is_quantized(gemm.a.format) || !is_quantized(gemm.b.format)) gemm.a.rotation = gemm.b.rotation = 0;
  }
}

void check_pattern(const std::string& pattern, const char* key, std::span<const LinearInfo> linears) {
  std::vector<std::string> names;
  for (const LinearInfo& linear : linears) {
    if (glob_match(pattern, linear.name)) return;
    names.push_back(linear.name);
  }
  std::vector<std::string> kinds;
  for (const LinearInfo& linear : linears) {
    if (std::find(kinds.begin(), kinds.end(), linear.kind) == kinds.end()) kinds.push_back(linear.kind);
    names.push_back("*." + linear.kind);
    names.push_back(fmt::format("blocks.{}.*", linear.block));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  fail_usage(
      "{}: the pattern \"{}\" matches no linear layer{} Layers are named blocks.B.KIND with B from 0 to {} "
      "and "
      "KIND one of {}.",
      key, pattern, did_you_mean(pattern, names), linears.empty() ? 0 : linears.back().blocks - 1,
      fmt::join(kinds, ", "));
}

void check_shape(const LinearInfo& linear, Gemm g, const QuantSpec& spec, std::int64_t tokens) {
  const FormatInfo& format = info(spec.format);
  const std::int64_t block = std::max(format.block, static_cast<int>(spec.rotation));
  if (block <= 1) return;
  const auto check_multiple = [&](const char* axis, std::int64_t size, const char* what) {
    check_usage(size % block == 0,
                "linear {} ({}, {}): {} = {} ({}) is not a multiple of {}; change the model, or keep the "
                "layer in BF16 "
                "with precision.keep_bf16 = [\"{}\"]",
                linear.name, name(g), format.name, axis, size, what, block, "*." + linear.kind);
  };
  check_multiple("N", linear.n, "output features");
  check_multiple("K", linear.k, "input features");
  check_usage(tokens % block == 0,
              "linear {} ({}, {}): T = {} (tokens of a micro-batch) is not a multiple of {}; change "
              "training.sequence "
              "or training.micro_batch",
              linear.name, name(g), format.name, tokens, block);
}

/// Steps at which the treatment of layers may change.
std::vector<std::int64_t> change_points(const Recipe& recipe) {
  std::vector<std::int64_t> steps = {0};
  for (const RecipeOverride& o : recipe.overrides) {
    steps.push_back(o.from_step);
    if (o.until_step != RecipeOverride{}.until_step) steps.push_back(o.until_step);
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

void check_linear(const LinearInfo& linear, const ResolvedLinear& resolved, std::int64_t tokens) {
  for (const Gemm g : kGemms) {
    const GemmRecipe& gemm = resolved.gemm(g);
    check_usage(gemm.a.rotation == gemm.b.rotation,
                "linear {}: the operands of {} are rotated by {} and {}, which does not cancel; give both "
                "operands the "
                "same rotation",
                linear.name, name(g), gemm.a.rotation, gemm.b.rotation);
    check_shape(linear, g, gemm.a, tokens);
    check_shape(linear, g, gemm.b, tokens);
  }
}

}  // namespace

const GemmRecipe& ResolvedLinear::gemm(Gemm g) const {
  return g == Gemm::Fprop ? fprop : g == Gemm::Dgrad ? dgrad : wgrad;
}

const QuantSpec& ResolvedLinear::spec(Gemm g, Operand o) const {
  return o == Operand::A ? gemm(g).a : gemm(g).b;
}

bool ResolvedLinear::quantized() const {
  for (const Gemm g : kGemms) {
    for (const Operand o : kOperands) {
      if (is_quantized(spec(g, o).format)) return true;
    }
  }
  return false;
}

ResolvedLinear resolve(const Recipe& recipe, const LinearInfo& linear, std::int64_t step) {
  const QuantSpec base{.format = recipe.base};
  ResolvedLinear out{.fprop = {base, base}, .dgrad = {base, base}, .wgrad = {base, base}};
  if (!quantizes(recipe)) {
    out.reason = fmt::format("recipe {}", recipe.name);
    return out;
  }
  out.reason = reason_to_keep(recipe, linear);
  if (!out.reason.empty()) return out;
  out.fprop = recipe.fprop;
  out.dgrad = recipe.dgrad;
  out.wgrad = recipe.wgrad;
  apply_overrides(recipe, linear, step, out);
  if (!out.quantized()) out.reason = "override";
  return out;
}

KeptBlocks kept_blocks(const Recipe& recipe, int blocks) {
  KeptBlocks kept;
  if (recipe.of_blocks > 0) {
    const auto scaled = [&](int published) {
      return static_cast<int>(std::lround(static_cast<double>(published) * blocks / recipe.of_blocks));
    };
    kept.first = scaled(recipe.first);
    kept.last = recipe.last > 0 ? std::max(1, scaled(recipe.last)) : 0;
  }
  if (recipe.first_blocks) kept.first = *recipe.first_blocks;
  if (recipe.last_blocks) kept.last = *recipe.last_blocks;
  return kept;
}

bool glob_match(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;  // let the last star take one character more
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

void check_recipe(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens) {
  for (const std::string& pattern : recipe.keep_bf16) check_pattern(pattern, "precision.keep_bf16", linears);
  for (const RecipeOverride& o : recipe.overrides) check_pattern(o.layers, "precision.override", linears);
  const KeptBlocks kept = kept_blocks(recipe, linears.empty() ? 0 : linears.front().blocks);
  check_usage(kept.first >= 0 && kept.last >= 0,
              "precision.bf16_first = {} and precision.bf16_last = {} must not be negative", kept.first,
              kept.last);
  for (const std::int64_t step : change_points(recipe)) {
    for (const LinearInfo& linear : linears) check_linear(linear, resolve(recipe, linear, step), tokens);
  }
}

BaseShare base_share(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step) {
  BaseShare share;
  double all = 0, kept = 0;
  for (const LinearInfo& linear : linears) {
    const double flops = static_cast<double>(linear.n) * static_cast<double>(linear.k);
    const bool quantized = resolve(recipe, linear, step).quantized();
    ++share.linears;
    all += flops;
    if (!quantized) ++share.kept, kept += flops;
  }
  if (share.linears > 0) {
    share.by_count = static_cast<double>(share.kept) / share.linears;
    share.by_flops = kept / all;
  }
  return share;
}

}  // namespace nibble
