// SPDX-License-Identifier: Apache-2.0
#include "plan/workload.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "models/flops.h"
#include "models/parameters.h"
#include "models/registry.h"
#include "plan/recipes.h"

namespace nibble {
namespace {

TEST(PlanModels, ParameterCountsAreThePublishedOnesToTheUnit) {
  const std::pair<const char*, std::int64_t> known[] = {{"llama-3.1-8b", 8030261248},
                                                        {"gpt2-124m", 124439808},
                                                        {"gpt2-1558m", 1557611200},
                                                        {"qwen3-0.6b", 596049920},
                                                        {"qwen3-8b", 8190735360},
                                                        {"nemotron-h-8b", 8100852736},
                                                        {"nemotron-nano-12b-v2", 12310001152},
                                                        {"llama-3-70b", 70553706496},
                                                        {"llama-3.1-405b", 405853388800},
                                                        {"llama-3.2-1b", 1235814400}};
  for (const auto& [name, count] : known) EXPECT_EQ(plan_parameters(find_plan_model(name)), count) << name;
}

TEST(PlanModels, EveryPresetCountsWhatTheTrainerAllocates) {
  for (const ModelPreset& preset : model_presets())
    EXPECT_EQ(plan_parameters(find_plan_model(preset.name)), param_count(preset_spec(preset.name)))
        << preset.name;
}

TEST(PlanModels, AnUnknownNameSuggestsTheNearest) {
  try {
    find_plan_model("lama-3.1-8b");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("llama-3.1-8b"), std::string::npos) << e.what();
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
  }
}

TEST(PlanWorkload, FlopsAreThoseOfTheTrainer) {
  for (const ModelPreset& preset : model_presets()) {
    const Workload w = make_workload(find_plan_model(preset.name), find_recipe("bf16"), 4096);
    const double trainer = flops_per_token(preset_spec(preset.name), 4096).total();
    EXPECT_NEAR(w.flops(4096), trainer, 1e-9 * trainer) << preset.name;
  }
}

TEST(PlanWorkload, ALlama8bSampleIs421Tflop) {
  const Workload w = make_workload(find_plan_model("llama-3.1-8b"), find_recipe("bf16"), 8192);
  EXPECT_NEAR(w.flops(8192) * 8192 * 1e-12, 421.65, 0.01);
}

TEST(PlanWorkload, PrecisionsAreTheResolversAnswer) {
  const PlanModel model = find_plan_model("paper-1.2b");
  const Recipe recipe = recipe_for(model, find_recipe("nvfp4"));
  const Workload w = make_workload(model, recipe, 8192);
  const BaseShare kept = base_share(recipe, linears(*model.dense), 0);
  EXPECT_NEAR(linear_shares(w).share[static_cast<int>(Rate::Bf16)], kept.by_flops, 1e-12);
  EXPECT_NEAR(kept.by_flops, 4.0 / 20, 1e-12) << "the paper keeps the last four of twenty blocks";
}

TEST(PlanWorkload, AnOverriddenGemmIsCountedInBf16) {
  Recipe recipe = find_plan_recipe("nvfp4-all");
  recipe.overrides.push_back({.gemm = Gemm::Wgrad, .format = Format::Bf16});
  const Workload w = make_workload(find_plan_model("llama-124m"), recipe, 1024);
  EXPECT_NEAR(linear_shares(w).share[static_cast<int>(Rate::Bf16)], 1.0 / 3, 1e-12);
}

TEST(PlanRecipes, NamesOfTheCatalogueAreTheTrainersRecipes) {
  EXPECT_EQ(&find_plan_recipe("nvfp4"), &find_recipe("nvfp4"));
  EXPECT_THROW(find_plan_recipe("nvfp5"), Error);
}

}  // namespace
}  // namespace nibble
