// SPDX-License-Identifier: Apache-2.0
// Every recipe of the catalogue is one that a step can run: what `nibble explain` prints, training does.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "models/parameters.h"
#include "models/registry.h"
#include "recipe/resolve.h"
#include "train/learner.h"
#include "train/quant_monitor.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequence = 32;

/// Five blocks, so that no recipe's kept ends take all of them.
DecoderSpec model() { return tiny_model(5, 96, kSequence); }

struct Outcome {
  double loss = 0, worst = 0;
  int operands = 0;
};

Outcome one_step(const Recipe& recipe, BackendKind backend) {
  HostDevice host;
  Stream stream(backend, host, 1);
  Learner learner(stream, {.model = model(),
                           .recipe = recipe,
                           .optimizer = {},
                           .schedule = {.peak = 1e-3, .steps = 10},
                           .sequence = kSequence,
                           .batch = 1,
                           .micro_batch = 1,
                           .seed = 5,
                           .sr_seed = 6});
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(kSequence + 1);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 96);
  Everything observer;
  // Delayed scaling knows no amax before the second step, and its first one is no measure of anything.
  double first = -1;
  if (learner.amaxes() != nullptr)
    first = learner
                .step(View<const std::int32_t>(ids.data(), kSequence),
                      View<const std::int32_t>(ids.data() + 1, kSequence), nullptr)
                .loss;
  const StepResult r = learner.step(View<const std::int32_t>(ids.data(), kSequence),
                                    View<const std::int32_t>(ids.data() + 1, kSequence), &observer);
  Outcome out{.loss = first < 0 ? r.loss : first, .operands = static_cast<int>(observer.operands.size())};
  for (const auto& [where, sums] : observer.operands)
    EXPECT_GT(sums.quantised.sqnr_db(), 5) << where << " under " << recipe.name;
  for (const auto& [where, sums] : observer.products) out.worst = std::max(out.worst, sums.relative_error());
  for (const auto& [where, sums] : observer.weights) {
    EXPECT_GT(sums.update.relative_error(), 0) << where;
    EXPECT_GT(sums.gradient.count, 0) << where;
  }
  return out;
}

class CatalogueRecipes : public ::testing::TestWithParam<BackendKind> {};

TEST_P(CatalogueRecipes, PassTheCheckAreExplainedAndRunAStep) {
  const double base = one_step(find_recipe("fp32"), GetParam()).loss;
  for (const Recipe& recipe : recipe_catalog()) {
    check_recipe(recipe, linears(model()), kSequence);
    const std::string text = explain(recipe, linears(model()), 0, 1.0);
    EXPECT_NE(text.find("Recipe " + recipe.name), std::string::npos);
    const Outcome o = one_step(recipe, GetParam());
    EXPECT_NEAR(o.loss, base, 0.1) << recipe.name;
    EXPECT_LT(o.worst, 0.5) << recipe.name << ": a product lost its scale";
    EXPECT_EQ(o.operands > 0, quantizes(recipe)) << recipe.name;
  }
}

TEST_P(CatalogueRecipes, EveryProfileRunsAStepOfNvfp4) {
  for (const Profile profile :
       {Profile::Te213, Profile::Exact, Profile::TorchAo, Profile::ModelOpt, Profile::Ct}) {
    const Outcome o = one_step(edited(find_recipe("nvfp4"), {.profile = profile}), GetParam());
    EXPECT_LT(o.worst, 0.5) << static_cast<int>(profile);
  }
}

TEST(RecipeOptions, FourOverSixRefusesAnotherProfileAtTheStart) {
  const Recipe recipe = edited(find_recipe("nvfp4-4over6"), {.profile = Profile::Ct});
  try {
    check_recipe(recipe, linears(model()), kSequence);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(e.what()).find("precision.profile"), std::string::npos) << e.what();
  }
}

TEST(RecipeOptions, ScalesThatAProductDoesNotApplyAreRefusedAtTheStart) {
  // FP32 scales a block of one operand alone.
  const Recipe blocks = edited(find_recipe("fp8-paper"),
                               {.overrides = {{.operand = Operand::A, .format = Format::Fp8BlockFp32E4M3}}});
  EXPECT_THROW(check_recipe(blocks, linears(model()), kSequence), Error);
  Recipe rows = find_recipe("nvfp4");
  rows.fprop.b.tensor_scaling = TensorScaling::Row;  // of square tiles
  EXPECT_THROW(check_recipe(rows, linears(model()), kSequence), Error);
}

TEST(RecipeOptions, TensorScalesOfNvfp4RunAStep) {
  for (const TensorScaling scaling : {TensorScaling::Tensor, TensorScaling::Row, TensorScaling::Previous}) {
    const Recipe recipe = edited(find_recipe("nvfp4"), {.tensor_scaling = scaling});
    check_recipe(recipe, linears(model()), kSequence);
    EXPECT_LT(one_step(recipe, BackendKind::Cpu).worst, 0.5) << static_cast<int>(scaling);
  }
}

TEST(RecipeOptions, MxRulesAndTiesAwayRunAStep) {
  for (const MxScaleRule rule : {MxScaleRule::Floor, MxScaleRule::Even, MxScaleRule::Ceil, MxScaleRule::Round,
                                 MxScaleRule::ThreeQuarters}) {
    Recipe recipe = find_recipe("mxfp4");
    for (GemmRecipe* g : {&recipe.fprop, &recipe.dgrad, &recipe.wgrad}) {
      for (QuantSpec* spec : {&g->a, &g->b}) {
        spec->scale_rule = rule;
        if (!is_stochastic(spec->rounding)) spec->rounding = Rounding::NearestAway;
      }
    }
    EXPECT_LT(one_step(recipe, BackendKind::Cpu).worst, 0.6) << static_cast<int>(rule);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CatalogueRecipes, ::testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace nibble
