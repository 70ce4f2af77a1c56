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

constexpr QuantSpec hadamard16(QuantSpec spec) {
  spec.rotation = 16;
  return spec;
}

std::vector<Recipe> fp8_rows() {
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

std::vector<Recipe> make_catalog() {
  std::vector<Recipe> rows = {
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
      {.name = "mxfp8",
       .source = "[MXFP8-RECIPES]",
       .summary = "MXFP8 E4M3 for every operand of every block, scales rounded up",
       .fprop = {kMx8, kMx8},
       .dgrad = {kMx8, kMx8},
       .wgrad = {kMx8, kMx8}},
  };
  const std::vector<Recipe> fp8 = fp8_rows();
  rows.insert(rows.end(), fp8.begin(), fp8.end());
  return rows;
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
