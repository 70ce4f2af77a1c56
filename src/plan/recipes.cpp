// SPDX-License-Identifier: Apache-2.0
#include "plan/recipes.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {
namespace {

constexpr QuantSpec kE4m3{.format = Format::Fp8E4M3};
constexpr QuantSpec kE5m2{.format = Format::Fp8E5M2};
constexpr QuantSpec kMx8{.format = Format::Mxfp8E4M3};
constexpr QuantSpec kMx4{.format = Format::Mxfp4};
constexpr QuantSpec kMx4Noisy{.format = Format::Mxfp4, .rounding = Rounding::Stochastic, .rotation = 16};
constexpr QuantSpec kMx4Rotated{.format = Format::Mxfp4, .rotation = 16};

Recipe nvfp4_everywhere() {
  Recipe all = find_recipe("nvfp4");
  all.name = "nvfp4-all";
  all.source = "[MLPERF51]";
  all.summary = "NVIDIA's recipe without blocks in BF16, as the 8B submissions to MLPerf ran it";
  all.first_blocks = 0;
  all.last_blocks = 0;
  return all;
}

std::vector<Recipe> make_rows() {
  Recipe fp8{.name = "fp8",
             .source = "[MBRIDGE]",
             .summary = "FP8 with one scale a tensor from its current amax; first and last block in BF16",
             .fprop = {kE4m3, kE4m3},
             .dgrad = {kE5m2, kE4m3},
             .wgrad = {kE5m2, kE4m3}};
  fp8.first_blocks = 1;
  fp8.last_blocks = 1;
  Recipe paper = fp8;
  paper.name = "fp8-paper";
  paper.source = "[NVFP4]";
  paper.summary = "the paper's FP8 baseline, counted as one scale a tensor; first block and last two in BF16";
  paper.last_blocks = 2;
  return {fp8,
          paper,
          {.name = "mxfp8",
           .source = "[OCP-MX]",
           .summary = "MXFP8 E4M3 in every block",
           .fprop = {kMx8, kMx8},
           .dgrad = {kMx8, kMx8},
           .wgrad = {kMx8, kMx8}},
          {.name = "mxfp4",
           .source = "[NVFP4]",
           .summary = "MXFP4 with the blocks in BF16 of the NVFP4 recipe",
           .fprop = {kMx4, kMx4},
           .dgrad = {kMx4, kMx4},
           .wgrad = {kMx4Noisy, kMx4Rotated},
           .first = 2,
           .last = 8,
           .of_blocks = 62},
          nvfp4_everywhere()};
}

}  // namespace

const std::vector<Recipe>& plan_recipes() {
  static const std::vector<Recipe> rows = make_rows();
  return rows;
}

const Recipe& find_plan_recipe(std::string_view wanted) {
  std::vector<std::string> names;
  for (const std::vector<Recipe>* list : {&recipe_catalog(), &plan_recipes()}) {
    for (const Recipe& recipe : *list) {
      if (recipe.name == wanted) return recipe;
      names.push_back(recipe.name);
    }
  }
  fail_usage("there is no recipe \"{}\"{} The planner knows: {}.", wanted, did_you_mean(wanted, names),
             fmt::join(names, ", "));
}

}  // namespace nibble
