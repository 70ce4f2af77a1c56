// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

namespace nibble {

/// The three matrix products of a linear layer y = x w^T, with x [T, K], w [N, K], y [T, N].
///   Fprop  y  = A B^T,  A = x    [T, K],  B = w    [N, K]   reduced over K
///   Dgrad  dx = A B^T,  A = dy   [T, N],  B = w^T  [K, N]   reduced over N
///   Wgrad  dw = A B^T,  A = dy^T [N, T],  B = x^T  [K, T]   reduced over T
/// Every operand is written with its reduction axis last, which is the axis its blocks lie along.
enum class Gemm : std::uint8_t { Fprop, Dgrad, Wgrad };
enum class Operand : std::uint8_t { A, B };

inline constexpr Gemm kGemms[] = {Gemm::Fprop, Gemm::Dgrad, Gemm::Wgrad};
inline constexpr Operand kOperands[] = {Operand::A, Operand::B};

std::string_view name(Gemm gemm);                     ///< "fprop", "dgrad", "wgrad"
std::string_view operand_name(Gemm gemm, Operand o);  ///< the tensor: "x", "w", "dy", "w^T", "dy^T", "x^T"
std::string_view operand_axis(Gemm gemm);             ///< the reduction axis: "K", "N", "T"

/// The role byte of the Philox counter. Row and transposed copies of one tensor are different roles, so that
/// the two copies of dy are rounded independently.
constexpr std::uint32_t random_role(Gemm gemm, Operand operand) {
  return 2 * static_cast<std::uint32_t>(gemm) + static_cast<std::uint32_t>(operand);
}

struct GemmRecipe {
  QuantSpec a, b;
  /// Of dgrad and wgrad: b is made of what fprop multiplied, its quantised w or x decoded, and not of the
  /// tensor itself, so that the gradient is that of the quantised forward pass. Holds where fprop's operand
  /// and b are both quantised.
  bool requantize = false;
  /// The mean over the tokens is taken out of x and dy before they are quantised, and its share of the
  /// product added exactly (layers/token_mean.h). Holds where the operands with tokens are quantised.
  bool centre = false;
  friend bool operator==(const GemmRecipe&, const GemmRecipe&) = default;
};

/// A change of a recipe for some layers, GEMMs, operands and steps. Later overrides win over earlier ones.
/// This is the grain at which studies are made: "wgrad in BF16", "forward in BF16 from step 8000".
struct RecipeOverride {
  std::string layers = "*";        ///< glob over linear names
  std::optional<Gemm> gemm;        ///< empty: all three
  std::optional<Operand> operand;  ///< empty: both
  std::int64_t from_step = 0;
  std::int64_t until_step =
      std::numeric_limits<std::int64_t>::max();  ///< the first step it no longer holds for
  std::optional<Format> format;
  std::optional<Tile> tile;
  std::optional<Rounding> rounding;
  std::optional<int> rotation;
  bool if_present = false;  ///< of the catalogue: `layers` may match nothing in models without such layers
  friend bool operator==(const RecipeOverride&, const RecipeOverride&) = default;
};

/// How attention's products are computed (ops/attention/quantized_attention.h). Bf16: not quantised; without
/// any format attention is computed as ever.
struct AttentionRecipe {
  Format qk = Format::Bf16;  ///< q k^T, and in the backward pass ds k and ds^T q
  Format pv = Format::Bf16;  ///< P v, and in the backward pass dout v^T and P^T dout
  bool backward = true;  ///< false: the backward products read the forward operands and unquantised gradients
  NonFinite non_finite = NonFinite::Detect;

  bool quantizes() const { return is_quantized(qk) || is_quantized(pv); }
  friend bool operator==(const AttentionRecipe&, const AttentionRecipe&) = default;
};

/// How products of two NVFP4 or two MXFP4 operands are added up; all others are summed in FP32.
enum class Accumulation : std::uint8_t {
  Fp32,        ///< exact BF16 operands, FP32 sums
  Truncating,  ///< as Blackwell's FP4 pipe by its published model (ops/gemm/matmul_truncating.h); slow
};

struct RecipeSwitch;

/// A precision recipe as data. Nothing outside `resolve()` interprets it, and no code asks for its name.
struct Recipe {
  std::string name;
  std::string source;  ///< key in docs/SOURCES.md
  std::string summary;
  GemmRecipe fprop, dgrad, wgrad;  ///< the linears that are not kept
  Format base = Format::Bf16;      ///< what kept linears, activations and gradients are in: Bf16, or Fp32
  Format residual = Format::Bf16;  ///< the residual stream
  Format residual_gradient = Format::Fp32;  ///< its gradient: Fp32, or Bf16 where `base` is (ADR 8)
  Format logits = Format::Fp32;  ///< of a training step: Fp32, or Bf16, which halves what the loss reads

  /// The published counts of blocks kept in `base` for a model of `of_blocks` blocks. For a model of L blocks
  /// they scale to round(first L / of_blocks) and max(1, round(last L / of_blocks)).
  int first = 0, last = 0, of_blocks = 0;
  std::optional<int> first_blocks, last_blocks;  ///< explicit counts, instead of the scaled ones
  std::vector<std::string> keep_bf16;    ///< globs over linear names kept in `base`, such as "*.mamba.out"
  std::vector<std::string> keep_always;  ///< the same of the recipe itself; a glob may match nothing
  std::vector<RecipeOverride> overrides;
  std::vector<RecipeSwitch> switches;  ///< in the order of their steps; later ones win
  AttentionRecipe attention;           ///< of the blocks that are not kept at the ends; of all steps
  Accumulation accumulate = Accumulation::Fp32;
  int amax_history = 1024, amax_margin = 0;  ///< of TensorScaling::Delayed, as [TE] has them

  // Planted faults, for tests of the guards.
  bool stuck_random_bits = false;    ///< stochastic rounding draws zeros
  bool wgrad_sign_mismatch = false;  ///< the wgrad operands have different sign masks
  std::string
      scale_binade_layers;  ///< glob: products of these linears read block scales one binade too large
};

/// Which GEMMs, indexed by Gemm.
using GemmSet = std::array<bool, 3>;
inline constexpr GemmSet kAllGemms = {true, true, true};

inline bool contains(const GemmSet& set, Gemm gemm) { return set[static_cast<std::size_t>(gemm)]; }

std::string gemm_names(const GemmSet& gemms);  ///< "fprop, dgrad"
std::string describe(const GemmSet& gemms);    ///< "forward", "backward" (dgrad, wgrad), "all", or the names

/// From a step on, some GEMMs of every linear follow another recipe: what its GEMMs are and which linears it
/// keeps. The other GEMMs stay as they were. Weights, optimizer state and data order know nothing of it, so a
/// run changes its precision without a restart.
struct RecipeSwitch {
  std::int64_t from_step = 0;  ///< steps done before the first one that follows `to`; at least 1
  GemmSet gemms = kAllGemms;
  Recipe to;  ///< its base is the base of the run; its residual stream and its own switches are not read
};

/// A switch in words. It takes the recipe as the catalogue has it, with the counts of kept blocks where
/// given.
struct SwitchEdit {
  std::int64_t from_step = 0;
  GemmSet gemms = kAllGemms;
  std::string recipe;
  std::optional<int> bf16_first, bf16_last;
  friend bool operator==(const SwitchEdit&, const SwitchEdit&) = default;
};

/// What followed which recipe before switch number `index`: "nvfp4", or "nvfp4/mxfp8" when its GEMMs differ.
std::string recipe_before_switch(const Recipe& recipe, std::size_t index);

/// The ingredients as switches. An empty one leaves the recipe as it is.
struct RecipeEdits {
  std::optional<bool> weights_2d;  ///< 16x16 weight tiles (false: 1x16 along each reduction axis)
  /// Random Hadamard transforms. False: none, whatever the details say. True: those of the recipe, or where
  /// it has none, of wgrad.
  std::optional<bool> rht;
  std::optional<int> rht_size;             ///< of every one; else the recipe's, else 16
  std::optional<RotationSigns> rht_signs;  ///< of every one; else the recipe's, else fixed
  std::optional<GemmSet> rht_gemms;        ///< which GEMMs' operands are rotated
  std::optional<bool> sr;                  ///< stochastic rounding of both copies of dy; false: of nothing
  std::optional<bool> sr_exact;            ///< 24 random bits a value instead of the hardware's 8
  std::optional<int> sr_bits;              ///< 2 to 16 random bits a value
  std::optional<bool> sr_headroom;  ///< of stochastically rounded NVFP4 operands; not read under sr = false
  std::optional<int> bf16_first, bf16_last;
  std::vector<std::string> keep_bf16;
  std::vector<RecipeOverride> overrides;
  std::vector<SwitchEdit> switches;
  std::optional<Profile> profile;
  std::optional<NonFinite> non_finite;
  std::optional<Format> residual, residual_gradient, logits;
  std::optional<Format> attention_qk, attention_pv;
  std::optional<bool> attention_backward;
  std::optional<TensorScaling> tensor_scaling;  ///< of the NVFP4 operands
  std::optional<int> amax_history, amax_margin;
  std::optional<Accumulation> accumulate;
  bool wgrad_sign_mismatch = false;  ///< planted fault: the wgrad operands are rotated by different signs
  bool stuck_random_bits = false;    ///< planted fault, see Recipe
  std::string scale_binade_layers;   ///< likewise
  friend bool operator==(const RecipeEdits&, const RecipeEdits&) = default;
  bool empty() const { return *this == RecipeEdits{}; }
};

/// All named recipes, in the order documentation lists them.
const std::vector<Recipe>& recipe_catalog();

/// The recipe called `name`; throws Error{Usage} that lists the names when there is none.
const Recipe& find_recipe(std::string_view name);

/// True when any operand of any GEMM is quantised, at some step.
bool quantizes(const Recipe& recipe);

/// The same, its switches left out.
bool quantizes_before_switches(const Recipe& recipe);

/// `recipe` with the edits applied. Ingredients and overrides change `recipe` alone; what describes the run
/// (keep_bf16, profile, non_finite) holds for the recipes it switches to as well. Throws Error{Usage} for an
/// edit that the recipe gives no meaning to, such as `rht` for a recipe that quantises nothing.
Recipe edited(Recipe recipe, const RecipeEdits& edits);

}  // namespace nibble
