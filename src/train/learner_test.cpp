// SPDX-License-Identifier: Apache-2.0
// What the check of a recipe accepts, a training step runs: `nibble explain` never promises what would fail.
#include "train/learner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "models/parameters.h"
#include "models/registry.h"
#include "recipe/resolve.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequence = 32;

DecoderSpec tiny() { return tiny_model(2, 96, kSequence); }

bool accepted(const Recipe& recipe, std::string* why) {
  try {
    check_recipe(recipe, linears(tiny()), kSequence);
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage) << e.what();
    *why = e.what();
    return false;
  }
}

/// Runs one step when the check accepts the recipe. Returns whether it did.
bool agree(const Recipe& recipe, const std::string& what, BackendKind backend) {
  std::string why;
  if (!accepted(recipe, &why)) return false;
  HostDevice host;
  Stream stream(backend, host, 1);
  try {
    Learner learner(stream, {.model = tiny(),
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
    const StepResult r = learner.step(View<const std::int32_t>(ids.data(), kSequence),
                                      View<const std::int32_t>(ids.data() + 1, kSequence), &observer);
    EXPECT_TRUE(std::isfinite(r.loss)) << what;
    EXPECT_EQ(!observer.operands.empty(), quantizes(recipe)) << what;
    for (const auto& [where, sums] : observer.products)
      EXPECT_TRUE(std::isfinite(sums.relative_error())) << what << ": " << where;
  } catch (const Error& e) {
    ADD_FAILURE() << what << ": accepted, but the step says: " << e.what();
  }
  return true;
}

constexpr Format kFormats[] = {Format::Fp32,      Format::Bf16,      Format::Nvfp4,   Format::Mxfp4,
                               Format::Mxfp8E4M3, Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Fp8E5M2};

class LearnerRecipes : public ::testing::TestWithParam<BackendKind> {};

TEST_P(LearnerRecipes, EveryFormatOfAnOverrideIsRefusedByTheCheckOrRunsAStep) {
  for (const char* base : {"nvfp4", "bf16", "fp32"}) {
    for (const Format format : kFormats) {
      for (const std::optional<Operand> operand :
           {std::optional<Operand>{}, std::optional(Operand::A), std::optional(Operand::B)}) {
        const Recipe recipe =
            edited(find_recipe(base), {.overrides = {{.operand = operand, .format = format}}});
        const std::string what = fmt::format("{} with {} for {}", base, info(format).name,
                                             !operand                 ? "both"
                                             : *operand == Operand::A ? "a"
                                                                      : "b");
        const bool ran = agree(recipe, what, GetParam());
        // Under nvfp4 and bf16 every format that quantises must be usable, not merely refused in time.
        const bool usable = is_quantized(format) && std::string(base) != "fp32";
        EXPECT_TRUE(ran || !usable) << what;
      }
    }
  }
}

TEST_P(LearnerRecipes, EveryTreatmentOfAnOverrideIsRefusedByTheCheckOrRunsAStep) {
  int ran = 0;
  for (const Format format : kFormats) {
    for (const Tile tile : {Tile::Row, Tile::Square}) {
      for (const Rounding rounding :
           {Rounding::NearestEven, Rounding::Stochastic, Rounding::StochasticExact}) {
        for (const int rotation : {0, 16}) {
          const RecipeOverride o{.format = format, .tile = tile, .rounding = rounding, .rotation = rotation};
          ran += agree(edited(find_recipe("nvfp4"), {.overrides = {o}}),
                       fmt::format("{} tile {} rounding {} rotation {}", info(format).name,
                                   static_cast<int>(tile), static_cast<int>(rounding), rotation),
                       GetParam());
        }
      }
    }
  }
  // NVFP4 has all twelve, MXFP4 six (rows), the 8-bit formats two each (rows, nearest even).
  EXPECT_EQ(ran, 12 + 6 + 4 * 2);
}

INSTANTIATE_TEST_SUITE_P(Backends, LearnerRecipes, ::testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace nibble
