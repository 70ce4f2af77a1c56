// SPDX-License-Identifier: Apache-2.0
#include "plan/recipes.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {
namespace {

constexpr QuantSpec kE4m3{.format = Format::Fp8E4M3};
constexpr QuantSpec kE5m2{.format = Format::Fp8E5M2};

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
  return {fp8, nvfp4_everywhere()};
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
