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

constexpr QuantSpec hadamard16(QuantSpec spec) {
  spec.rotation = 16;
  return spec;
}

std::vector<Recipe> make_catalog() {
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
  };
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
