// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "recipe/recipe.h"

namespace nibble {

/// Recipes of other stacks, by the name the planner compares them under. The catalogue's come first: a recipe
/// that the trainer knows is the trainer's.
const std::vector<Recipe>& plan_recipes();

/// The catalogue's recipe, or the planner's row. Throws Error{Usage} that lists both.
const Recipe& find_plan_recipe(std::string_view name);

}  // namespace nibble
