// SPDX-License-Identifier: Apache-2.0
// A recipe is data: adding one is adding a row here and to docs/recipes.md. No other file asks for one by
// name.
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

constexpr QuantSpec kFp32{.format = Format::Fp32};
constexpr QuantSpec kBf16{.format = Format::Bf16};
constexpr QuantSpec kRows{.format = Format::Nvfp4, .tile = Tile::Row};
constexpr QuantSpec kTiles{.format = Format::Nvfp4, .tile = Tile::Square};
constexpr QuantSpec kNoisy{.format = Format::Nvfp4, .tile = Tile::Row, .rounding = Rounding::Stochastic};

constexpr QuantSpec kMx8{.format = Format::Mxfp8E4M3};
constexpr QuantSpec kMx4{.format = Format::Mxfp4};
constexpr QuantSpec kMx4Noisy{.format = Format::Mxfp4, .rounding = Rounding::Stochastic};
constexpr QuantSpec kE4m3{.format = Format::Fp8E4M3};
constexpr QuantSpec kE5m2{.format = Format::Fp8E5M2};
constexpr QuantSpec kE4m3Delayed{.format = Format::Fp8E4M3, .tensor_scaling = TensorScaling::Delayed};
constexpr QuantSpec kE5m2Delayed{.format = Format::Fp8E5M2, .tensor_scaling = TensorScaling::Delayed};
constexpr QuantSpec kDeepSeekRows{.format = Format::Fp8BlockFp32E4M3, .tile = Tile::Row};
constexpr QuantSpec kDeepSeekTiles{.format = Format::Fp8BlockFp32E4M3, .tile = Tile::Square};
constexpr QuantSpec kFp8Rows{.format = Format::Fp8BlockE4M3, .tile = Tile::Row};
constexpr QuantSpec kFp8Tiles{.format = Format::Fp8BlockE4M3, .tile = Tile::Square};

constexpr QuantSpec four_over_six(QuantSpec spec) {
  spec.four_over_six = FourOverSix::Mse;
  spec.scale_bound = 256;
  return spec;
}

constexpr QuantSpec hadamard(QuantSpec spec, std::uint16_t size, RotationSigns signs = RotationSigns::Fixed) {
  spec.rotation = size;
  spec.signs = signs;
  return spec;
}

constexpr QuantSpec hadamard16(QuantSpec spec) { return hadamard(spec, 16); }

constexpr QuantSpec with_headroom(QuantSpec spec) {
  spec.headroom = true;
  return spec;
}

constexpr QuantSpec three_quarters(QuantSpec spec) {
  spec.scale_rule = MxScaleRule::ThreeQuarters;
  return spec;
}

/// MS-EDEN over rotations of 128 with signs of their own in every step.
constexpr QuantSpec kEden =
    hadamard({.format = Format::Nvfp4, .scale_bound = 256, .eden_group = 16}, 128, RotationSigns::Redrawn);
constexpr QuantSpec kTetraJet = hadamard(with_headroom(kNoisy), 32, RotationSigns::Redrawn);
constexpr QuantSpec kTseng = hadamard(three_quarters(kMx4Noisy), 64, RotationSigns::Redrawn);

std::vector<Recipe> fp8_recipes() {
  return {
      {.name = "fp8-current",
       .source = "[TE]",
       .summary =
           "one scale a tensor from its current amax: E4M3 forward, E5M2 for dy; first and last block in "
           "BF16",
       .fprop = {kE4m3, kE4m3},
       .dgrad = {kE5m2, kE4m3},
       .wgrad = {kE5m2, kE4m3},
       .first_blocks = 1,
       .last_blocks = 1},
      {.name = "fp8-delayed",
       .source = "[TE]",
       .summary =
           "one scale a tensor from the largest amax of the last 1024 steps: E4M3 forward, E5M2 for dy",
       .fprop = {kE4m3Delayed, kE4m3Delayed},
       .dgrad = {kE5m2Delayed, kE4m3Delayed},
       .wgrad = {kE5m2Delayed, kE4m3Delayed}},
      {.name = "fp8-deepseek",
       .source = "[DEEPSEEK]",
       .summary = "E4M3 with FP32 scales each 1x128 of activations and gradients and 128x128 of weights",
       .fprop = {kDeepSeekRows, kDeepSeekTiles},
       .dgrad = {kDeepSeekRows, kDeepSeekTiles},
       .wgrad = {kDeepSeekRows, kDeepSeekRows}},
      {.name = "fp8-paper",
       .source = "[NVFP4]",
       .summary =
           "the paper's FP8 baseline: E4M3, weights in 128x128, the rest in 1x128; first block and last "
           "two in BF16",
       .fprop = {kFp8Rows, kFp8Tiles},
       .dgrad = {kFp8Rows, kFp8Tiles},
       .wgrad = {kFp8Rows, kFp8Rows},
       .first_blocks = 1,
       .last_blocks = 2},
  };
}

std::vector<Recipe> four_bit_and_base_recipes() {
  return {
      {.name = "fp32",
       .source = "[IEEE754]",
       .summary = "every tensor and product in FP32",
       .fprop = {kFp32, kFp32},
       .dgrad = {kFp32, kFp32},
       .wgrad = {kFp32, kFp32},
       .base = Format::Fp32,
       .residual = Format::Fp32},
      {.name = "bf16",
       .source = "[MEGATRON]",
       .summary = "BF16 products with FP32 accumulation, FP32 master weights and states",
       .fprop = {kBf16, kBf16},
       .dgrad = {kBf16, kBf16},
       .wgrad = {kBf16, kBf16}},
      {.name = "nvfp4",
       .source = "[NVFP4]",
       .summary = "NVIDIA's recipe: 16x16 weights, RHT-16 in wgrad, stochastic rounding of both copies of dy",
       .fprop = {kRows, kTiles},
       .dgrad = {kNoisy, kTiles},
       .wgrad = {hadamard16(kNoisy), hadamard16(kRows)},
       .first = 2,
       .last = 8,
       .of_blocks = 62},
      {.name = "nvfp4-4over6",
       .source = "[FOUROVERSIX]",
       .summary = "nvfp4 with a choice of 4 or 6 a block for weights and activations (MSE, bound 256)",
       .fprop = {four_over_six(kRows), four_over_six(kTiles)},
       .dgrad = {kNoisy, four_over_six(kTiles)},
       .wgrad = {hadamard16(kNoisy), hadamard16(four_over_six(kRows))},
       .first = 2,
       .last = 8,
       .of_blocks = 62},
      {.name = "mxfp4",
       .source = "[NVFP4]",
       .summary =
           "the paper's comparison: MXFP4 with RHT in wgrad and stochastic rounding of both copies of dy",
       .fprop = {kMx4, kMx4},
       .dgrad = {kMx4Noisy, kMx4},
       .wgrad = {hadamard16(kMx4Noisy), hadamard16(kMx4)},
       .first = 2,
       .last = 8,
       .of_blocks = 62},
      {.name = "mxfp4-rht32",
       .source = "[NVFP4]",
       .summary = "mxfp4 with the paper's rotation: RHT-32, one rotation a block",
       .fprop = {kMx4, kMx4},
       .dgrad = {kMx4Noisy, kMx4},
       .wgrad = {hadamard(kMx4Noisy, 32), hadamard(kMx4, 32)},
       .first = 2,
       .last = 8,
       .of_blocks = 62},
  };
}

/// Of papers other than NVIDIA's first, and of its later models.
std::vector<Recipe> recipes_of_the_literature() {
  return {
      {.name = "quartet2",
       .source = "[QUARTET2]",
       .summary = "1x16 with a choice of 4 or 6 forward, MS-EDEN under redrawn RHT-128 for all four backward "
                  "operands, no block in BF16",
       .fprop = {four_over_six(kRows), four_over_six(kRows)},
       .dgrad = {kEden, kEden, true},
       .wgrad = {kEden, kEden, true}},
      {.name = "tetrajet2",
       .source = "[QUARTET2]",
       .summary = "TetraJet-v2 as simplified for Quartet II's tables: 1x16 forward, stochastic rounding with "
                  "headroom under redrawn RHT-32 for all four backward operands, no block in BF16",
       .fprop = {kRows, kRows},
       .dgrad = {kTetraJet, kTetraJet, true},
       .wgrad = {kTetraJet, kTetraJet, true}},
      {.name = "tseng-mxfp4",
       .source = "[TSENG]",
       .summary = "MXFP4 in the backward pass alone: stochastic rounding of 3/4 of the values under redrawn "
                  "RHT-64, no block in BF16",
       .fprop = {kBf16, kBf16},
       .dgrad = {kTseng, kTseng},
       .wgrad = {kTseng, kTseng}},
      {.name = "nemotron3",
       .source = "[NEMOTRON3]",
       .summary =
           "nvfp4 as Nemotron 3 Super kept it: last 14 of 88 blocks, QKV and attention output in BF16, "
           "Mamba's output projection in MXFP8",
       .fprop = {kRows, kTiles},
       .dgrad = {kNoisy, kTiles},
       .wgrad = {hadamard16(kNoisy), hadamard16(kRows)},
       .last = 14,
       .of_blocks = 88,
       .keep_always = {"*.attention.*"},
       .overrides =
           {{.layers = "*.mamba.out", .format = Format::Mxfp8E4M3, .rotation = 0, .if_present = true}}},
      {.name = "averis",
       .source = "[AVERIS]",
       .summary = "the mean over tokens taken out of x and dy before they are quantised, its share of the "
                  "products exact; 1x16, stochastic rounding of dy, no rotation",
       .fprop = {.a = kRows, .b = kRows, .centre = true},
       .dgrad = {.a = kNoisy, .b = kRows, .centre = true},
       .wgrad = {.a = kNoisy, .b = kRows, .centre = true},
       .first = 2,
       .last = 8,
       .of_blocks = 62},
  };
}

std::vector<Recipe> mx_recipes() {
  return {
      {.name = "mxfp8",
       .source = "[MXFP8-RECIPES]",
       .summary = "MXFP8 E4M3 for every operand of every block, scales rounded up",
       .fprop = {kMx8, kMx8},
       .dgrad = {kMx8, kMx8},
       .wgrad = {kMx8, kMx8}},
  };
}

std::vector<Recipe> make_catalog() {
  std::vector<Recipe> all = four_bit_and_base_recipes();
  for (const std::vector<Recipe>& more : {recipes_of_the_literature(), mx_recipes(), fp8_recipes()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

const std::vector<Recipe>& recipe_catalog() {
  static const std::vector<Recipe> catalog = make_catalog();
  return catalog;
}

const Recipe& find_recipe(std::string_view name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipe_catalog()) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  fail_usage("there is no recipe \"{}\"{} The recipes are: {}.", name, did_you_mean(name, names),
             fmt::join(names, ", "));
}

}  // namespace nibble
