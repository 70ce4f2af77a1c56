// SPDX-License-Identifier: Apache-2.0
#include "recipe/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace nibble {
namespace {

template <class F>
void for_each_spec(Recipe& recipe, F&& f) {
  for (GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) {
    f(gemm->a);
    f(gemm->b);
  }
}

GemmRecipe& gemm_of(Recipe& recipe, Gemm g) {
  return g == Gemm::Fprop ? recipe.fprop : g == Gemm::Dgrad ? recipe.dgrad : recipe.wgrad;
}

void set_stochastic(Recipe& recipe, bool on) {
  if (on) {
    for (QuantSpec* dy : {&recipe.dgrad.a, &recipe.wgrad.a}) {
      if (is_quantized(dy->format) && !is_stochastic(dy->rounding)) dy->rounding = Rounding::Stochastic;
    }
  } else {
    for_each_spec(recipe, [](QuantSpec& spec) {
      if (is_stochastic(spec.rounding)) spec.rounding = Rounding::NearestEven;
    });
  }
}

void set_exact(Recipe& recipe, bool exact) {
  for_each_spec(recipe, [&](QuantSpec& spec) {
    if (!is_stochastic(spec.rounding)) return;
    spec.rounding = exact ? Rounding::StochasticExact : Rounding::Stochastic;
  });
}

void set_random_bits(Recipe& recipe, const RecipeEdits& edits) {
  check_usage(!edits.sr_bits || !edits.sr_exact.value_or(false),
              "precision.sr_bits = {} and precision.sr_exact = true contradict each other: sr_exact takes 24 "
              "random bits; remove one of them",
              edits.sr_bits.value_or(0));
  check_usage(!edits.sr_bits || (*edits.sr_bits >= 2 && *edits.sr_bits <= 16),
              "precision.sr_bits = {} must lie between 2 and 16; precision.sr_exact = true takes 24",
              edits.sr_bits.value_or(0));
  if (edits.sr_exact) set_exact(recipe, *edits.sr_exact);
  if (!edits.sr_bits) return;
  for_each_spec(recipe, [&](QuantSpec& spec) {
    if (!is_stochastic(spec.rounding)) return;
    spec.rounding = Rounding::Stochastic;
    spec.random_bits = static_cast<std::uint8_t>(*edits.sr_bits);
  });
}

void set_headroom(Recipe& recipe, bool on) {
  bool found = false;
  for_each_spec(recipe, [&](QuantSpec& spec) {
    if (spec.format != Format::Nvfp4 || !is_stochastic(spec.rounding)) return;
    spec.headroom = on;
    found = true;
  });
  check_usage(found,
              "precision.sr_headroom belongs to nvfp4 operands that are rounded stochastically, and recipe "
              "\"{}\" as edited has none; remove the key, or set precision.sr = true",
              recipe.name);
}

bool rotates(const GemmRecipe& gemm) { return gemm.a.rotation != 0 || gemm.b.rotation != 0; }

/// Rotates both operands of a GEMM, or neither: the rotation cancels only when the other operand has it too.
void rotate(GemmRecipe& gemm, int size, RotationSigns signs) {
  for (QuantSpec* spec : {&gemm.a, &gemm.b}) {
    spec->rotation = static_cast<std::uint16_t>(size);
    // Sixteen without signs is the mask 0, which the quantisers rotate by in passing.
    const bool plain = size == 16 && signs == RotationSigns::None;
    spec->sign_mask = plain ? std::uint16_t{0} : QuantSpec{}.sign_mask;
    spec->signs = plain ? RotationSigns::Fixed : signs;
  }
}

RotationSigns signs_of(const QuantSpec& spec) {
  return spec.signs == RotationSigns::Fixed && spec.sign_mask == 0 ? RotationSigns::None : spec.signs;
}

void set_rotations(Recipe& recipe, const RecipeEdits& edits) {
  const bool details = edits.rht_size || edits.rht_signs || edits.rht_gemms;
  if (!edits.rht && !details) return;
  if (edits.rht == false) {
    for_each_spec(recipe, [](QuantSpec& spec) { spec.rotation = 0; });
    return;
  }
  check_usage(!edits.rht_size || is_rotation_size(*edits.rht_size),
              "precision.rht_size = {} must be a power of two from 2 to 128", edits.rht_size.value_or(0));
  GemmSet gemms{};
  int size = 16;
  RotationSigns signs = RotationSigns::Fixed;
  for (const Gemm g : kGemms) {
    const GemmRecipe& gemm = gemm_of(recipe, g);
    if (!rotates(gemm)) continue;
    gemms[static_cast<std::size_t>(g)] = true;
    size = gemm.a.rotation;
    signs = signs_of(gemm.a);
  }
  if (edits.rht && gemms == GemmSet{}) gemms[static_cast<std::size_t>(Gemm::Wgrad)] = true;
  if (edits.rht_gemms) gemms = *edits.rht_gemms;
  check_usage(gemms != GemmSet{} || !details,
              "recipe \"{}\" rotates the operands of no GEMM, so precision.rht_size and rht_signs have no "
              "meaning; set precision.rht = true, or name GEMMs in precision.rht_gemms",
              recipe.name);
  for (const Gemm g : kGemms) {
    GemmRecipe& gemm = gemm_of(recipe, g);
    const bool quantized = is_quantized(gemm.a.format) && is_quantized(gemm.b.format);
    if (!contains(gemms, g)) {
      gemm.a.rotation = gemm.b.rotation = 0;
    } else if (quantized) {
      rotate(gemm, edits.rht_size.value_or(size), edits.rht_signs.value_or(signs));
    } else {
      check_usage(!edits.rht_gemms,
                  "precision.rht_gemms names {}, of which recipe \"{}\" does not quantise both operands; "
                  "leave it out",
                  name(g), recipe.name);
    }
  }
}

bool quantizes_by_itself(const Recipe& recipe) {
  for (const GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) {
    if (is_quantized(gemm->a.format) || is_quantized(gemm->b.format)) return true;
  }
  return false;
}

void check_edits_apply(const Recipe& recipe, const RecipeEdits& edits) {
  if (quantizes_by_itself(recipe)) return;
  const auto refuse = [&](bool given, const char* key) {
    check_usage(
        !given,
        "precision.{} has no meaning for recipe \"{}\", which quantises nothing by itself; remove the "
        "key (a precision.override says its own tile, rounding and rotation), or choose another recipe",
        key, recipe.name);
  };
  refuse(edits.weights_2d.has_value(), "weights_2d");
  refuse(edits.rht.has_value(), "rht");
  refuse(edits.sr.has_value(), "sr");
  refuse(edits.rht_size.has_value(), "rht_size");
  refuse(edits.rht_signs.has_value(), "rht_signs");
  refuse(edits.rht_gemms.has_value(), "rht_gemms");
  refuse(edits.sr_exact.has_value(), "sr_exact");
  refuse(edits.sr_bits.has_value(), "sr_bits");
  refuse(edits.sr_headroom.has_value(), "sr_headroom");
  // The others say where and how, which overrides that quantise heed too.
  if (quantizes(recipe)) return;
  refuse(edits.bf16_first.has_value(), "bf16_first");
  refuse(edits.bf16_last.has_value(), "bf16_last");
  refuse(!edits.keep_bf16.empty(), "keep_bf16");
  refuse(edits.profile.has_value(), "profile");
  refuse(edits.wgrad_sign_mismatch, "wgrad_sign_mismatch");
  refuse(edits.stuck_random_bits, "stuck_random_bits");
  refuse(!edits.scale_binade_layers.empty(), "scale_binade_layers");
}

void edit_scaling(Recipe& recipe, const RecipeEdits& edits) {
  bool nvfp4 = false, delayed = false;
  for_each_spec(recipe, [&](QuantSpec& spec) {
    delayed = delayed || spec.tensor_scaling == TensorScaling::Delayed;
    if (spec.format != Format::Nvfp4) return;
    nvfp4 = true;
    // A scale a row is no scale of a square tile: such an operand keeps the tensor's.
    if (!edits.tensor_scaling) return;
    if (*edits.tensor_scaling != TensorScaling::Row || spec.tile == Tile::Row)
      spec.tensor_scaling = *edits.tensor_scaling;
  });
  check_usage(
      !edits.tensor_scaling || nvfp4,
      "precision.tensor_scale is an option of nvfp4, and recipe \"{}\" has no such operand; remove the "
      "key, or choose another recipe",
      recipe.name);
  check_usage(
      (!edits.amax_history && !edits.amax_margin) || delayed,
      "precision.amax_history and amax_margin belong to delayed scaling, which recipe \"{}\" does not "
      "have; remove them, or use precision.recipe = \"fp8-delayed\"",
      recipe.name);
  if (edits.amax_history) recipe.amax_history = *edits.amax_history;
  if (edits.amax_margin) recipe.amax_margin = *edits.amax_margin;
}

bool multiplies_fp4(const Recipe& recipe) {
  const auto is_fp4 = [](Format f) { return f == Format::Nvfp4 || f == Format::Mxfp4; };
  for (const GemmRecipe* gemm : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) {
    if (is_fp4(gemm->a.format) && gemm->a.format == gemm->b.format) return true;
  }
  return std::any_of(recipe.overrides.begin(), recipe.overrides.end(),
                     [&](const RecipeOverride& o) { return o.format && is_fp4(*o.format); }) ||
         std::any_of(recipe.switches.begin(), recipe.switches.end(),
                     [](const RecipeSwitch& s) { return multiplies_fp4(s.to); });
}

void edit_accumulation(Recipe& recipe, const RecipeEdits& edits) {
  if (edits.accumulate) recipe.accumulate = *edits.accumulate;
  check_usage(
      recipe.accumulate == Accumulation::Fp32 || multiplies_fp4(recipe),
      "precision.accumulate = \"truncating\" is how products of two nvfp4 or two mxfp4 operands are summed, "
      "and recipe \"{}\" has none; remove the key, or choose another recipe",
      recipe.name);
}

void edit_attention(AttentionRecipe& attention, const RecipeEdits& edits) {
  if (edits.attention_qk) attention.qk = *edits.attention_qk;
  if (edits.attention_pv) attention.pv = *edits.attention_pv;
  if (edits.attention_backward) attention.backward = *edits.attention_backward;
  if (edits.non_finite) attention.non_finite = *edits.non_finite;
  check_usage(!edits.attention_backward || attention.quantizes(),
              "precision.attention_backward has no meaning without a format of attention; set "
              "precision.attention_qk or precision.attention_pv, or remove the key");
}

void edit_storage(Recipe& recipe, const RecipeEdits& edits) {
  if (edits.residual) recipe.residual = *edits.residual;
  if (edits.residual_gradient) recipe.residual_gradient = *edits.residual_gradient;
  if (edits.logits) recipe.logits = *edits.logits;
  check_usage(recipe.residual_gradient == Format::Fp32 || recipe.base != Format::Fp32,
              "precision.residual_gradient = \"bf16\" needs activations in BF16, and those of recipe \"{}\" "
              "are in FP32; remove the key, or choose another recipe",
              recipe.name);
}

/// The catalogue's row, and what the run says of all of its precision.
RecipeSwitch to_switch(const SwitchEdit& edit, const RecipeEdits& run) {
  RecipeSwitch out{.from_step = edit.from_step, .gemms = edit.gemms, .to = find_recipe(edit.recipe)};
  if (edit.bf16_first) out.to.first_blocks = edit.bf16_first;
  if (edit.bf16_last) out.to.last_blocks = edit.bf16_last;
  out.to.keep_bf16.insert(out.to.keep_bf16.end(), run.keep_bf16.begin(), run.keep_bf16.end());
  for_each_spec(out.to, [&](QuantSpec& spec) {
    if (!is_quantized(spec.format)) return;
    if (run.profile) spec.profile = *run.profile;
    if (run.non_finite) spec.non_finite = *run.non_finite;
  });
  return out;
}

}  // namespace

std::string_view name(Gemm gemm) {
  switch (gemm) {
    case Gemm::Fprop:
      return "fprop";
    case Gemm::Dgrad:
      return "dgrad";
    case Gemm::Wgrad:
      return "wgrad";
  }
  return "?";
}

std::string_view operand_name(Gemm gemm, Operand o) {
  const bool a = o == Operand::A;
  switch (gemm) {
    case Gemm::Fprop:
      return a ? "x" : "w";
    case Gemm::Dgrad:
      return a ? "dy" : "w^T";
    case Gemm::Wgrad:
      return a ? "dy^T" : "x^T";
  }
  return "?";
}

std::string_view operand_axis(Gemm gemm) {
  switch (gemm) {
    case Gemm::Fprop:
      return "K";
    case Gemm::Dgrad:
      return "N";
    case Gemm::Wgrad:
      return "T";
  }
  return "?";
}

std::string describe(const GemmSet& gemms) {
  if (gemms == kAllGemms) return "all";
  if (gemms == GemmSet{true, false, false}) return "forward";
  if (gemms == GemmSet{false, true, true}) return "backward";
  return gemm_names(gemms);
}

std::string gemm_names(const GemmSet& gemms) {
  std::vector<std::string_view> names;
  for (const Gemm g : kGemms) {
    if (contains(gemms, g)) names.push_back(name(g));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string recipe_before_switch(const Recipe& recipe, std::size_t index) {
  std::vector<std::string> names;
  for (const Gemm g : kGemms) {
    if (!contains(recipe.switches[index].gemms, g)) continue;
    std::string now = recipe.name;
    for (std::size_t i = 0; i < index; ++i) {
      if (contains(recipe.switches[i].gemms, g)) now = recipe.switches[i].to.name;
    }
    if (std::find(names.begin(), names.end(), now) == names.end()) names.push_back(now);
  }
  return fmt::format("{}", fmt::join(names, "/"));
}

bool quantizes(const Recipe& recipe) {
  if (quantizes_before_switches(recipe)) return true;
  return std::any_of(recipe.switches.begin(), recipe.switches.end(),
                     [](const RecipeSwitch& s) { return quantizes(s.to); });
}

bool quantizes_before_switches(const Recipe& recipe) {
  if (quantizes_by_itself(recipe)) return true;
  for (const RecipeOverride& o : recipe.overrides) {
    if (o.format && is_quantized(*o.format)) return true;
  }
  return false;
}

Recipe edited(Recipe recipe, const RecipeEdits& edits) {
  recipe.overrides.insert(recipe.overrides.end(), edits.overrides.begin(), edits.overrides.end());
  for (const SwitchEdit& s : edits.switches) recipe.switches.push_back(to_switch(s, edits));
  check_edits_apply(recipe, edits);
  if (edits.weights_2d) {
    for (QuantSpec* w : {&recipe.fprop.b, &recipe.dgrad.b}) {
      if (is_quantized(w->format)) w->tile = *edits.weights_2d ? Tile::Square : Tile::Row;
    }
  }
  set_rotations(recipe, edits);
  if (edits.sr) set_stochastic(recipe, *edits.sr);
  set_random_bits(recipe, edits);
  if (edits.sr_headroom && edits.sr.value_or(true)) set_headroom(recipe, *edits.sr_headroom);
  if (edits.bf16_first) recipe.first_blocks = edits.bf16_first;
  if (edits.bf16_last) recipe.last_blocks = edits.bf16_last;
  recipe.keep_bf16.insert(recipe.keep_bf16.end(), edits.keep_bf16.begin(), edits.keep_bf16.end());
  for_each_spec(recipe, [&](QuantSpec& spec) {
    if (edits.profile) spec.profile = *edits.profile;
    if (edits.non_finite) spec.non_finite = *edits.non_finite;
  });
  edit_storage(recipe, edits);
  edit_attention(recipe.attention, edits);
  edit_scaling(recipe, edits);
  edit_accumulation(recipe, edits);
  recipe.stuck_random_bits = edits.stuck_random_bits;
  recipe.scale_binade_layers = edits.scale_binade_layers;
  if (edits.wgrad_sign_mismatch) {
    check_usage(
        recipe.wgrad.b.rotation != 0,
        "faults.wgrad_sign_mismatch needs a rotation in wgrad, and recipe \"{}\" as edited has none; set "
        "precision.rht = true",
        recipe.name);
    // Half of every sixteen products enter dw with the wrong sign: an expected gradient near zero, which no
    // comparison of losses may let pass.
    recipe.wgrad.b.sign_mask = static_cast<std::uint16_t>(recipe.wgrad.a.sign_mask ^ 0x00FF);
    recipe.wgrad_sign_mismatch = true;
  }
  return recipe;
}

}  // namespace nibble
