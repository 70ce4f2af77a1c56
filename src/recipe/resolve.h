// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace nibble {

/// One linear layer of a block, as the recipe sees it. Embeddings, head, norms, softmax, scan and convolution
/// are not linears of a block, so no recipe can quantise them.
struct LinearInfo {
  std::string name;    ///< "blocks.7.mamba.in": what patterns match
  std::string kind;    ///< "mamba.in"
  int block = 0;       ///< from 0
  int blocks = 0;      ///< of the whole model
  std::int64_t n = 0;  ///< output features (rows of the weight)
  std::int64_t k = 0;  ///< input features
  int position = 0;    ///< index among all linears of the model: the `layer` of the Philox counter
};

/// What one linear does in one step.
struct ResolvedLinear {
  GemmRecipe fprop, dgrad, wgrad;
  std::string reason;  ///< why the recipe does not apply ("last 8 of 62 blocks"); empty when it applies

  const GemmRecipe& gemm(Gemm g) const;
  const QuantSpec& spec(Gemm g, Operand o) const;
  bool quantized() const;  ///< any operand of any GEMM
  friend bool operator==(const ResolvedLinear&, const ResolvedLinear&) = default;
};

/// The one place where a recipe meets a layer. A pure function.
ResolvedLinear resolve(const Recipe& recipe, const LinearInfo& linear, std::int64_t step);

/// The whole model's plan of a step: two steps with equal plans issue the same work.
std::vector<ResolvedLinear> plan_of_step(const Recipe& recipe, std::span<const LinearInfo> linears,
                                         std::int64_t step);

/// Step 0 and the steps at which overrides and switches begin or end, in order: between two of them the plan
/// stays the same.
std::vector<std::int64_t> change_points(const Recipe& recipe);

/// Blocks kept in the recipe's base format at the two ends of a model of `blocks` blocks.
struct KeptBlocks {
  int first = 0, last = 0;
};
KeptBlocks kept_blocks(const Recipe& recipe, int blocks);

/// True when `text` matches `glob`: `*` is any run of characters (dots too), `?` is one.
bool glob_match(std::string_view glob, std::string_view text);

/// Throws Error{Usage} for the first of `patterns` that matches no linear, naming the configuration's `key`
/// ("telemetry.layers") and the nearest names.
void check_patterns(std::span<const std::string> patterns, std::span<const LinearInfo> linears,
                    std::string_view key);

/// Throws Error{Usage} for what can never work with these linears, at any step: a pattern that matches none
/// (near names are listed); a tile, rounding, rotation or unquantised format that an operand's format or the
/// recipe's base does not have; operands rotated by different sizes; a size of T (`tokens`, of one
/// micro-batch), N or K that the formats' blocks do not divide; a recipe that quantises, kept from every
/// linear; a switch before step 1, out of order, to another base, or that changes nothing. What passes here,
/// a training step can run. The text names layer, GEMM, operand and the remedy.
void check_recipe(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens);

/// What attention does in block `block` of `blocks`: nothing is quantised in blocks kept at the two ends.
AttentionRecipe attention_of(const Recipe& recipe, int block, int blocks);

/// Throws Error{Usage} when blocks of attention's formats do not divide a head's width or a sequence.
void check_attention(const Recipe& recipe, std::int64_t head_dim, std::int64_t sequence);

/// Share of the linears that are wholly in the base format at `step`.
struct BaseShare {
  int linears = 0, kept = 0;
  double by_count = 0;
  double by_flops = 0;  ///< weighted by N K
};
BaseShare base_share(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step);

/// The plan as text: the kinds of treatment (GEMM x operand: axis, block, tile, rounding, rotation, profile,
/// random role), then one line a linear, then the shares.
///   other_flops   FLOPs a token outside the linears (head, attention, scan), for the share of the whole step
std::string explain(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                    double other_flops);

}  // namespace nibble
