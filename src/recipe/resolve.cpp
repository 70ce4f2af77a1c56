// SPDX-License-Identifier: Apache-2.0
#include "recipe/resolve.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/nearest.h"
#include "quant/format_names.h"

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
  for (const std::vector<std::string>* patterns : {&recipe.keep_bf16, &recipe.keep_always}) {
    for (const std::string& pattern : *patterns) {
      if (glob_match(pattern, linear.name)) return fmt::format("pattern \"{}\"", pattern);
    }
  }
  return "";
}

bool has_square_tiles(Format format) { return info(format).square_tiles; }
bool has_stochastic_rounding(Format format) { return info(format).other_roundings; }

/// `before` in another format. What the new format has too is kept: how it is rounded, the rotation, whose
/// arithmetic it follows. Options of the old format alone and what the new one has not fall back to what
/// every format has (rows, nearest even), and an unquantised operand has no treatment that could be kept.
QuantSpec in_format(const QuantSpec& before, Format format) {
  QuantSpec spec{.format = format,
                 .tile = before.tile,
                 .rounding = before.rounding,
                 .rotation = before.rotation,
                 .sign_mask = before.sign_mask,
                 .signs = before.signs,
                 .profile = before.profile,
                 .non_finite = before.non_finite,
                 .random_bits = before.random_bits};
  if (!is_quantized(format) || !is_quantized(before.format)) spec.rotation = 0;
  if (!is_quantized(before.format) || !has_square_tiles(format)) spec.tile = Tile::Row;
  if (!is_quantized(before.format) || !has_stochastic_rounding(format)) spec.rounding = Rounding::NearestEven;
  return spec;
}

void apply(const RecipeOverride& o, QuantSpec& spec) {
  if (o.format && *o.format != spec.format) spec = in_format(spec, *o.format);
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

void check_pattern(const std::string& pattern, std::string_view key, std::span<const LinearInfo> linears) {
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
  const std::int64_t block = format.multiple;  // a rotation pads to its own size
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

ResolvedLinear resolve_before_switches(const Recipe& recipe, const LinearInfo& linear, std::int64_t step) {
  const QuantSpec base{.format = recipe.base};
  ResolvedLinear out{.fprop = {base, base}, .dgrad = {base, base}, .wgrad = {base, base}};
  if (!quantizes_before_switches(recipe)) {
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

void apply(const RecipeSwitch& s, const LinearInfo& linear, ResolvedLinear& out) {
  const ResolvedLinear to = resolve_before_switches(s.to, linear, s.from_step);
  for (const Gemm g : kGemms) {
    if (contains(s.gemms, g)) gemm_of(out, g) = to.gemm(g);
  }
  if (out.quantized())
    out.reason.clear();
  else if (!to.reason.empty())
    out.reason = fmt::format("{}, from step {}", to.reason, s.from_step);
}

/// What the quantisers refuse, said before anything runs.
void check_spec(const LinearInfo& linear, Gemm g, Operand o, const QuantSpec& spec, Format base) {
  const std::string_view format = info(spec.format).name;
  const std::string where = fmt::format("linear {} ({}, operand {} = {})", linear.name, name(g),
                                        o == Operand::A ? "a" : "b", operand_name(g, o));
  check_usage(is_quantized(spec.format) || spec.format == base,
              "{}: precision.override asks for {}, but what this recipe does not quantise is in {}; use "
              "format = \"{}\", or precision.recipe = \"{}\" to compute everything in it",
              where, format, info(base).name, info(base).name, format);
  if (!is_quantized(spec.format)) return;
  check_usage(spec.tile == Tile::Row || has_square_tiles(spec.format),
              "{}: square tiles exist for nvfp4 and fp8_block_e4m3, not for {}; set tile = \"row\" in the "
              "precision.override of "
              "this operand, or format = \"nvfp4\"",
              where, format);
  check_usage(spec.rounding == Rounding::NearestEven || has_stochastic_rounding(spec.format),
              "{}: stochastic rounding exists for nvfp4 and mxfp4, not for {}; set rounding = \"nearest\" in "
              "the precision.override of this operand, or choose one of those formats",
              where, format);
  check_usage(
      spec.tensor_scaling != TensorScaling::Row ||
          (spec.tile == Tile::Row && spec.four_over_six == FourOverSix::Off),
      "{}: {} has a scale a row, which square tiles and four-over-six have not; set tile = \"row\" in the "
      "precision.override of this operand, or precision.tensor_scale = \"current\"",
      where, arithmetic_name(spec));
  check_usage(
      spec.four_over_six == FourOverSix::Off || spec.profile == Profile::Te,
      "{}: four-over-six has one order of operations, and precision.profile = \"{}\" is another; remove "
      "the key, or use precision.recipe = \"nvfp4\"",
      where, profile_name(spec.profile));
  check_usage(
      spec.four_over_six == FourOverSix::Off || spec.tile == Tile::Row || !is_stochastic(spec.rounding),
      "{}: four-over-six in square tiles rounds to nearest; set tile = \"row\" or rounding = "
      "\"nearest\" in the precision.override",
      where);
  check_usage(spec.rotation == 0 || is_rotation_size(spec.rotation),
              "{}: there is no rotation of size {}; set rotation = 0 or a power of two from 2 to 128 in the "
              "precision.override",
              where, spec.rotation);
  check_usage(!spec.headroom || (spec.format == Format::Nvfp4 && spec.profile <= Profile::Te213),
              "{}: headroom is of nvfp4 under the profiles nvfp4.te and nvfp4.te213, not of {}; remove "
              "precision.sr_headroom or precision.profile, or use a recipe without headroom",
              where, arithmetic_name(spec));
  check_usage(
      spec.eden_group == 0 ||
          (spec.format == Format::Nvfp4 && spec.tile == Tile::Row && spec.profile == Profile::Te &&
           spec.rounding == Rounding::NearestEven && spec.tensor_scaling != TensorScaling::Row),
      "{}: MS-EDEN has rows, elements rounded to nearest, the profile nvfp4.te and one scale a tensor; "
      "remove "
      "what asks for another tile, rounding, profile or tensor_scale, or use precision.recipe = \"nvfp4\"",
      where);
}

/// What must hold between the operands of a GEMM so that their rotations cancel.
void check_rotations(const LinearInfo& linear, Gemm g, const GemmRecipe& gemm, const Recipe& recipe) {
  check_usage(gemm.a.rotation == gemm.b.rotation,
              "linear {}: the operands of {} are rotated by {} and {}, which does not cancel; give both "
              "operands the same rotation",
              linear.name, name(g), gemm.a.rotation, gemm.b.rotation);
  const bool planted = recipe.wgrad_sign_mismatch && g == Gemm::Wgrad;
  check_usage(gemm.a.rotation == 0 ||
                  (gemm.a.signs == gemm.b.signs && (planted || gemm.a.sign_mask == gemm.b.sign_mask)),
              "linear {}: the operands of {} are rotated under different signs, which does not cancel; give "
              "both operands the same signs",
              linear.name, name(g));
}

/// Means are of the tensors themselves. Decoded values lie as the tensor does only where fprop did not rotate
/// them.
void check_requantize(const LinearInfo& linear, const ResolvedLinear& resolved, Format base) {
  const bool from_fprop = resolved.dgrad.requantize || resolved.wgrad.requantize;
  check_usage(!from_fprop || resolved.fprop.a.rotation == 0,
              "linear {}: this recipe quantises for the backward pass what the forward pass multiplied, so "
              "fprop's operands cannot be rotated; leave fprop out of precision.rht_gemms, and rotation out "
              "of its precision.override",
              linear.name);
  const bool centres = resolved.fprop.centre || resolved.dgrad.centre || resolved.wgrad.centre;
  check_usage(
      !centres || (!from_fprop && base == Format::Bf16),
      "linear {}: the mean over tokens is taken out of BF16 tensors alone; use a recipe that does not "
      "quantise the forward copies again",
      linear.name);
}

void check_linear(const LinearInfo& linear, const ResolvedLinear& resolved, const Recipe& recipe,
                  std::int64_t tokens) {
  const Format base = recipe.base;
  check_requantize(linear, resolved, base);
  for (const Gemm g : kGemms) {
    const GemmRecipe& gemm = resolved.gemm(g);
    check_spec(linear, g, Operand::A, gemm.a, base);
    check_spec(linear, g, Operand::B, gemm.b, base);
    // A decoded operand is held in BF16, exactly, and a product takes two operands of one storage type.
    check_usage(base != Format::Fp32 || is_quantized(gemm.a.format) == is_quantized(gemm.b.format),
                "linear {} ({}): one operand is quantised and the other is in fp32, which no product takes; "
                "quantise both in precision.override, or use precision.recipe = \"bf16\"",
                linear.name, name(g));
    check_usage(
        (gemm.a.format == Format::Fp8BlockFp32E4M3) == (gemm.b.format == Format::Fp8BlockFp32E4M3),
        "linear {} ({}): one operand has FP32 scales a block and the other not, which no product takes; "
        "give both the format fp8_block_fp32_e4m3 in precision.override, or neither",
        linear.name, name(g));
    check_rotations(linear, g, gemm, recipe);
    check_shape(linear, g, gemm.a, tokens);
    check_shape(linear, g, gemm.b, tokens);
  }
}

void check_override(const RecipeOverride& o) {
  check_usage(o.until_step > o.from_step && o.from_step >= 0,
              "precision.override of \"{}\": from_step = {} and until_step = {} hold for no step; until_step "
              "is the first step it no longer holds for",
              o.layers, o.from_step, o.until_step);
  check_usage(
      !o.format || is_quantized(*o.format) || (!o.tile && !o.rounding && o.rotation.value_or(0) == 0),
      "precision.override of \"{}\": format = \"{}\" quantises nothing, so tile, rounding and rotation "
      "have no meaning beside it; remove them",
      o.layers, info(o.format.value_or(Format::Bf16)).name);
}

/// A recipe that quantises, applied so that nothing is quantised, would be compared as if it were one.
[[noreturn]] void fail_all_kept(const Recipe& recipe, int blocks) {
  const KeptBlocks kept = kept_blocks(recipe, blocks);
  const std::string_view base = info(recipe.base).name;
  const std::string remedy = fmt::format("or train in {} openly with precision.recipe = \"{}\"", base, base);
  if (std::int64_t{kept.first} + kept.last >= blocks) {
    const auto origin = [](const std::optional<int>& given) {
      return given ? "given, or the preset's" : "scaled to the model's depth";
    };
    fail_usage(
        "recipe \"{}\" would quantise nothing: precision.bf16_first = {} ({}) and precision.bf16_last = {} "
        "({}) "
        "keep all of the model's {} blocks in {}; set both so that their sum is below {}, {}",
        recipe.name, kept.first, origin(recipe.first_blocks), kept.last, origin(recipe.last_blocks), blocks,
        base, blocks, remedy);
  }
  fail_usage(
      "recipe \"{}\" would quantise nothing: the {} first and {} last blocks (precision.bf16_first, "
      "bf16_last), "
      "precision.keep_bf16 = [{}] and precision.override leave every linear layer in {} at every step; "
      "remove "
      "some of the patterns or overrides, {}",
      recipe.name, kept.first, kept.last, fmt::join(recipe.keep_bf16, ", "), base, remedy);
}

bool same_gemms(const ResolvedLinear& a, const ResolvedLinear& b) {
  return a.fprop == b.fprop && a.dgrad == b.dgrad && a.wgrad == b.wgrad;
}

/// Whether some linear is computed differently because of switch number `index`, in the step it begins at.
bool changes_something(const Recipe& recipe, std::size_t index, std::span<const LinearInfo> linears) {
  Recipe before = recipe, after = recipe;
  before.switches.resize(index);
  after.switches.resize(index + 1);
  const std::int64_t step = recipe.switches[index].from_step;
  return std::any_of(linears.begin(), linears.end(), [&](const LinearInfo& linear) {
    return !same_gemms(resolve(before, linear, step), resolve(after, linear, step));
  });
}

void check_switches(const Recipe& recipe, std::span<const LinearInfo> linears) {
  std::int64_t last = 1;
  for (std::size_t i = 0; i < recipe.switches.size(); ++i) {
    const RecipeSwitch& s = recipe.switches[i];
    const std::string which = fmt::format("precision.switch to \"{}\" at step {}", s.to.name, s.from_step);
    check_usage(
        s.from_step >= 1,
        "{}: the run begins so; set precision.recipe = \"{}\", or a later step in precision.switch.at", which,
        s.to.name);
    check_usage(s.from_step >= last,
                "{}: the switch before it is at step {}; put the switches in the order of their steps", which,
                last);
    last = s.from_step;
    check_usage(
        s.gemms != GemmSet{},
        "{} names no GEMM; list some of fprop, dgrad and wgrad in precision.switch.gemms, or leave the "
        "key out for all three",
        which);
    check_usage(s.to.base == recipe.base,
                "{}: what that recipe does not quantise is in {}, and in \"{}\" it is in {}, which does not "
                "change in mid-run; switch to a recipe with base {}, or start with one with base {}",
                which, info(s.to.base).name, recipe.name, info(recipe.base).name, info(recipe.base).name,
                info(s.to.base).name);
    if (linears.empty()) continue;
    const bool quantized = std::any_of(linears.begin(), linears.end(), [&](const LinearInfo& linear) {
      return resolve_before_switches(s.to, linear, s.from_step).quantized();
    });
    if (quantizes(s.to) && !quantized) fail_all_kept(s.to, linears.front().blocks);
    check_usage(
        changes_something(recipe, i, linears),
        "{} changes nothing: {} of every linear layer is already as in that recipe; remove the switch, "
        "or name another recipe in it",
        which, gemm_names(s.gemms));
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
  ResolvedLinear out = resolve_before_switches(recipe, linear, step);
  for (const RecipeSwitch& s : recipe.switches) {
    if (step >= s.from_step) apply(s, linear, out);
  }
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

std::vector<ResolvedLinear> plan_of_step(const Recipe& recipe, std::span<const LinearInfo> linears,
                                         std::int64_t step) {
  std::vector<ResolvedLinear> plan;
  plan.reserve(linears.size());
  for (const LinearInfo& l : linears) plan.push_back(resolve(recipe, l, step));
  return plan;
}

std::vector<std::int64_t> change_points(const Recipe& recipe) {
  std::vector<std::int64_t> steps = {0};
  for (const RecipeOverride& o : recipe.overrides) {
    steps.push_back(o.from_step);
    if (o.until_step != RecipeOverride{}.until_step) steps.push_back(o.until_step);
  }
  for (const RecipeSwitch& s : recipe.switches) steps.push_back(s.from_step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
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

void check_patterns(std::span<const std::string> patterns, std::span<const LinearInfo> linears,
                    std::string_view key) {
  for (const std::string& pattern : patterns) check_pattern(pattern, key, linears);
}

void check_recipe(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens) {
  check_patterns(recipe.keep_bf16, linears, "precision.keep_bf16");
  if (!recipe.scale_binade_layers.empty())
    check_pattern(recipe.scale_binade_layers, "faults.scale_binade_layers", linears);
  for (const RecipeOverride& o : recipe.overrides) {
    if (!o.if_present) check_pattern(o.layers, "precision.override.layers", linears);
    check_override(o);
  }
  check_switches(recipe, linears);
  const int blocks = linears.empty() ? 0 : linears.front().blocks;
  const KeptBlocks kept = kept_blocks(recipe, blocks);
  check_usage(kept.first >= 0 && kept.last >= 0,
              "precision.bf16_first = {} and precision.bf16_last = {} must not be negative", kept.first,
              kept.last);
  bool quantized = false;
  for (const std::int64_t step : change_points(recipe)) {
    for (const LinearInfo& linear : linears) {
      const ResolvedLinear resolved = resolve(recipe, linear, step);
      check_linear(linear, resolved, recipe, tokens);
      quantized = quantized || resolved.quantized();
    }
  }
  if (quantizes(recipe) && !quantized && !linears.empty()) fail_all_kept(recipe, blocks);
}

AttentionRecipe attention_of(const Recipe& recipe, int block, int blocks) {
  const KeptBlocks kept = kept_blocks(recipe, blocks);
  return block < kept.first || block >= blocks - kept.last ? AttentionRecipe{} : recipe.attention;
}

void check_attention(const Recipe& recipe, std::int64_t head_dim, std::int64_t sequence) {
  const auto check_format = [&](const char* key, Format format) {
    const int block = info(format).multiple;
    check_usage(
        head_dim % block == 0 && sequence % block == 0,
        "precision.{} = \"{}\": heads of {} features in sequences of {} tokens are no multiples of its "
        "blocks of {}; change model.head_dim or training.sequence, or use \"fp8\", which has no blocks",
        key, info(format).name, head_dim, sequence, block);
  };
  check_format("attention_qk", recipe.attention.qk);
  check_format("attention_pv", recipe.attention.pv);
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
