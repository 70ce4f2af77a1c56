// SPDX-License-Identifier: Apache-2.0
#include "recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/usage_error_testing.h"
#include "recipe/resolve.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing::usage_error;

/// A model of `blocks` blocks, each with mamba.in [96, 64] and mamba.out [64, 32].
std::vector<LinearInfo> model(int blocks) {
  std::vector<LinearInfo> out;
  for (int b = 0; b < blocks; ++b) {
    for (const char* name : {"in", "out"}) {
      const bool in = std::string(name) == "in";
      out.push_back({.name = fmt::format("blocks.{}.mamba.{}", b, name),
                     .kind = std::string("mamba.") + name,
                     .block = b,
                     .blocks = blocks,
                     .n = in ? 96 : 64,
                     .k = in ? 64 : 32,
                     .position = static_cast<int>(out.size())});
    }
  }
  return out;
}

const LinearInfo kMiddle{
    .name = "blocks.30.mamba.in", .kind = "mamba.in", .block = 30, .blocks = 62, .n = 64, .k = 64};

TEST(Nvfp4Recipe, GivesEachOperandItsPublishedTreatment) {
  const ResolvedLinear r = resolve(find_recipe("nvfp4"), kMiddle, 0);
  EXPECT_TRUE(r.reason.empty());
  const QuantSpec row{.format = Format::Nvfp4}, square{.format = Format::Nvfp4, .tile = Tile::Square};
  QuantSpec noisy = row, rotated = row, rotated_noisy = row;
  noisy.rounding = Rounding::Stochastic;
  rotated.rotation = 16;
  rotated_noisy.rounding = Rounding::Stochastic;
  rotated_noisy.rotation = 16;
  EXPECT_EQ(r.fprop, (GemmRecipe{row, square}));
  EXPECT_EQ(r.dgrad, (GemmRecipe{noisy, square}));
  EXPECT_EQ(r.wgrad, (GemmRecipe{rotated_noisy, rotated}));
}

TEST(NamedRecipes, AnUnknownNameListsTheNamesAndTheNearest) {
  const std::string text = usage_error([] { find_recipe("nvpf4"); });
  EXPECT_THAT(text, HasSubstr("did you mean \"nvfp4\""));
  EXPECT_THAT(text, HasSubstr("fp32, bf16, nvfp4"));
}

TEST(NamedRecipes, Fp32HasNoBf16Anywhere) {
  const Recipe& fp32 = find_recipe("fp32");
  EXPECT_EQ(fp32.residual, Format::Fp32);
  const ResolvedLinear r = resolve(fp32, kMiddle, 0);
  for (const Gemm g : kGemms) {
    for (const Operand o : kOperands) EXPECT_EQ(r.spec(g, o).format, Format::Fp32);
  }
}

TEST(KeptBlocks, ScaleWithDepthAndKeepAtLeastOneAtTheEnd) {
  const Recipe& nvfp4 = find_recipe("nvfp4");
  const auto kept = [&](int blocks) {
    const KeptBlocks k = kept_blocks(nvfp4, blocks);
    return std::pair(k.first, k.last);
  };
  EXPECT_EQ(kept(62), std::pair(2, 8));
  EXPECT_EQ(kept(52), std::pair(2, 7));
  EXPECT_EQ(kept(31), std::pair(1, 4));
  EXPECT_EQ(kept(12), std::pair(0, 2));
  EXPECT_EQ(kept(7), std::pair(0, 1));
  EXPECT_EQ(kept(1), std::pair(0, 1));
}

TEST(KeptBlocks, ExplicitCountsWin) {
  const Recipe r = edited(find_recipe("nvfp4"), {.bf16_first = 0, .bf16_last = 0});
  EXPECT_TRUE(resolve(r, model(62)[0], 0).quantized());
  EXPECT_TRUE(resolve(r, model(62)[123], 0).quantized());
}

TEST(Resolve, SaysWhyALinearIsKept) {
  const std::vector<LinearInfo> linears = model(62);
  const Recipe r = edited(find_recipe("nvfp4"), {.keep_bf16 = {"*.mamba.out"}});
  EXPECT_EQ(resolve(r, linears[0], 0).reason, "first 2 of 62 blocks");
  EXPECT_EQ(resolve(r, linears[123], 0).reason, "last 8 of 62 blocks");
  EXPECT_EQ(resolve(r, linears[61], 0).reason, "pattern \"*.mamba.out\"");
  EXPECT_FALSE(resolve(r, linears[61], 0).quantized());
  EXPECT_EQ(resolve(find_recipe("bf16"), linears[61], 0).reason, "recipe bf16");
}

TEST(Edits, EachIngredientIsASwitch) {
  const auto with = [](const RecipeEdits& e) { return resolve(edited(find_recipe("nvfp4"), e), kMiddle, 0); };
  EXPECT_EQ(with({.weights_2d = false}).fprop.b.tile, Tile::Row);
  EXPECT_EQ(with({.weights_2d = false}).dgrad.b.tile, Tile::Row);
  EXPECT_EQ(with({.rht = false}).wgrad.a.rotation, 0);
  EXPECT_EQ(with({.rht = false}).wgrad.b.rotation, 0);
  EXPECT_EQ(with({.sr = false}).dgrad.a.rounding, Rounding::NearestEven);
  EXPECT_EQ(with({.sr = false}).wgrad.a.rounding, Rounding::NearestEven);
  EXPECT_EQ(with({.sr_exact = true}).dgrad.a.rounding, Rounding::StochasticExact);
  EXPECT_EQ(with({.sr_exact = true}).fprop.a.rounding, Rounding::NearestEven);
  EXPECT_EQ(with({.profile = Profile::Te213}).fprop.a.profile, Profile::Te213);
  EXPECT_EQ(with({.non_finite = NonFinite::AsTe}).wgrad.b.non_finite, NonFinite::AsTe);
}

TEST(Edits, ASwitchThatMeansNothingIsRefused) {
  EXPECT_THAT(usage_error([] { edited(find_recipe("bf16"), {.rht = true}); }), HasSubstr("precision.rht"));
}

TEST(Edits, TheGradientOfTheResidualStreamIsBf16WhereActivationsAreAndOnlyWhenAskedFor) {
  for (const Recipe& r : recipe_catalog()) EXPECT_EQ(r.residual_gradient, Format::Fp32) << r.name;
  EXPECT_EQ(edited(find_recipe("nvfp4"), {.residual_gradient = Format::Bf16}).residual_gradient,
            Format::Bf16);
  EXPECT_THAT(usage_error([] { edited(find_recipe("fp32"), {.residual_gradient = Format::Bf16}); }),
              HasSubstr("precision.residual_gradient = \"bf16\" needs activations in BF16"));
  EXPECT_EQ(edited(find_recipe("fp32"), {.residual_gradient = Format::Fp32}).residual_gradient, Format::Fp32);
}

TEST(PlantedFault, MakesTheSignsOfTheWgradOperandsDiffer) {
  const ResolvedLinear r = resolve(edited(find_recipe("nvfp4"), {.wgrad_sign_mismatch = true}), kMiddle, 0);
  EXPECT_NE(r.wgrad.a.sign_mask, r.wgrad.b.sign_mask);
  usage_error([] { edited(find_recipe("nvfp4"), {.rht = false, .wgrad_sign_mismatch = true}); });
}

TEST(RhtEdits, SayWhichGemmsRotateByHowMuchUnderWhichSigns) {
  const auto with = [](const RecipeEdits& e, const char* recipe = "nvfp4") {
    return resolve(edited(find_recipe(recipe), e), kMiddle, 0);
  };
  const ResolvedLinear sized = with({.rht_size = 64});
  EXPECT_EQ(sized.wgrad.a.rotation, 64);
  EXPECT_EQ(sized.wgrad.b.rotation, 64);
  EXPECT_EQ(sized.dgrad.a.rotation, 0);
  const ResolvedLinear everywhere = with({.rht_gemms = kAllGemms});
  for (const Gemm g : kGemms) {
    for (const Operand o : kOperands) EXPECT_EQ(everywhere.spec(g, o).rotation, 16);
  }
  EXPECT_EQ(with({.rht_gemms = GemmSet{false, true, false}}).wgrad.a.rotation, 0);
  EXPECT_EQ(with({.rht_signs = RotationSigns::Redrawn}).wgrad.b.signs, RotationSigns::Redrawn);
  const ResolvedLinear unsigned16 = with({.rht_signs = RotationSigns::None});
  EXPECT_EQ(unsigned16.wgrad.a.sign_mask, 0);
  EXPECT_TRUE(rotates_in_passing(unsigned16.wgrad.a));
  EXPECT_EQ(with({.rht_size = 32, .rht_signs = RotationSigns::None}).wgrad.a.signs, RotationSigns::None);
  // What the recipe has of its own stays.
  const ResolvedLinear quartet = with({.rht_size = 32}, "quartet2");
  EXPECT_EQ(quartet.dgrad.b.rotation, 32);
  EXPECT_EQ(quartet.dgrad.b.signs, RotationSigns::Redrawn);
  EXPECT_EQ(quartet.dgrad.b.eden_group, 16);
  EXPECT_EQ(quartet.fprop.a.rotation, 0);
  EXPECT_EQ(with({.rht = true}, "mxfp4-rht32").wgrad.a.rotation, 32);
  EXPECT_EQ(with({.rht = false}, "quartet2").dgrad.a.rotation, 0);
  // As an ablation leaves the ingredient out of a configuration that has details of it.
  EXPECT_EQ(with({.rht = false, .rht_size = 32, .rht_gemms = kAllGemms}).wgrad.a.rotation, 0);
  EXPECT_FALSE(with({.sr = false, .sr_headroom = true}).dgrad.a.headroom);
}

TEST(RhtEdits, ThatContradictEachOtherOrMeanNothingAreRefused) {
  const auto refused = [](const RecipeEdits& e, const char* recipe) {
    return usage_error([&] { edited(find_recipe(recipe), e); });
  };
  EXPECT_THAT(refused({.rht_size = 48}, "nvfp4"), HasSubstr("a power of two from 2 to 128"));
  EXPECT_THAT(refused({.rht_size = 32}, "mxfp8"), HasSubstr("set precision.rht = true"));
  EXPECT_THAT(refused({.rht_gemms = kAllGemms}, "tseng-mxfp4"), HasSubstr("names fprop"));
  EXPECT_THAT(refused({.rht_size = 32}, "bf16"), HasSubstr("precision.rht_size"));
  const Recipe rotated = edited(find_recipe("quartet2"), {.rht_gemms = kAllGemms});
  EXPECT_THAT(usage_error([&] { check_recipe(rotated, model(4), 32); }), HasSubstr("precision.rht_gemms"));
}

TEST(RhtEdits, OperandsUnderDifferentSignsAreRefused) {
  Recipe recipe = edited(find_recipe("nvfp4"), {.bf16_first = 0, .bf16_last = 0});
  recipe.wgrad.b.signs = RotationSigns::Redrawn;
  EXPECT_THAT(usage_error([&] { check_recipe(recipe, model(4), 32); }), HasSubstr("under different signs"));
  recipe.wgrad.b.signs = RotationSigns::Fixed;
  recipe.wgrad.b.sign_mask = 1;
  EXPECT_THAT(usage_error([&] { check_recipe(recipe, model(4), 32); }), HasSubstr("under different signs"));
  check_recipe(edited(find_recipe("nvfp4"), {.rht_size = 128, .wgrad_sign_mismatch = true}), model(4), 32);
}

TEST(SrEdits, SayHowManyBitsAndWhetherThereIsHeadroom) {
  const auto with = [](const RecipeEdits& e, const char* recipe = "nvfp4") {
    return resolve(edited(find_recipe(recipe), e), kMiddle, 0);
  };
  EXPECT_EQ(with({.sr_bits = 4}).dgrad.a.random_bits, 4);
  EXPECT_EQ(with({.sr_bits = 4}).fprop.a.random_bits, 8);
  EXPECT_TRUE(with({.sr_headroom = true}).wgrad.a.headroom);
  EXPECT_FALSE(with({.sr_headroom = true}).wgrad.b.headroom);
  EXPECT_FALSE(with({.sr_headroom = false}, "tetrajet2").wgrad.b.headroom);
  EXPECT_EQ(with({.sr = false}, "tetrajet2").dgrad.b.rounding, Rounding::NearestEven);
  EXPECT_EQ(with({.sr_bits = 16, .overrides = {{.format = Format::Mxfp4}}}).dgrad.a.random_bits, 16);
  const auto refused = [](const RecipeEdits& e, const char* recipe) {
    return usage_error([&] { edited(find_recipe(recipe), e); });
  };
  EXPECT_THAT(refused({.sr_exact = true, .sr_bits = 8}, "nvfp4"), HasSubstr("contradict"));
  EXPECT_THAT(refused({.sr_bits = 1}, "nvfp4"), HasSubstr("between 2 and 16"));
  EXPECT_THAT(refused({.sr_headroom = true}, "mxfp4"), HasSubstr("precision.sr_headroom"));
  const Recipe other = edited(find_recipe("tetrajet2"), {.profile = Profile::Ct});
  EXPECT_THAT(usage_error([&] { check_recipe(other, model(4), 32); }), HasSubstr("headroom"));
  const Recipe eden = edited(find_recipe("quartet2"), {.sr = true});
  EXPECT_THAT(usage_error([&] { check_recipe(eden, model(4), 32); }), HasSubstr("MS-EDEN"));
}

TEST(Nemotron3, KeepsAttentionAndPutsMambasOutputInMxfp8) {
  const Recipe& r = find_recipe("nemotron3");
  const std::vector<LinearInfo> linears = model(88);
  EXPECT_EQ(resolve(r, linears[0], 0).fprop.a.format, Format::Nvfp4);
  EXPECT_EQ(resolve(r, linears[1], 0).wgrad.a, QuantSpec{.format = Format::Mxfp8E4M3});
  EXPECT_EQ(resolve(r, linears[2 * 74], 0).reason, "last 14 of 88 blocks");
  LinearInfo qkv = kMiddle;
  qkv.name = "blocks.30.attention.qkv";
  EXPECT_EQ(resolve(r, qkv, 0).reason, "pattern \"*.attention.*\"");
  check_recipe(r, linears, 32);  // without attention
}

TEST(Overrides, HoldForTheirStepsLayersAndGemmsAlone) {
  RecipeOverride forward{.layers = "*.mamba.in",
                         .gemm = Gemm::Fprop,
                         .from_step = 100,
                         .until_step = 200,
                         .format = Format::Bf16};
  const Recipe r = edited(find_recipe("nvfp4"), {.overrides = {forward}});
  EXPECT_TRUE(is_quantized(resolve(r, kMiddle, 99).fprop.a.format));
  EXPECT_FALSE(is_quantized(resolve(r, kMiddle, 100).fprop.a.format));
  EXPECT_FALSE(is_quantized(resolve(r, kMiddle, 199).fprop.b.format));
  EXPECT_TRUE(is_quantized(resolve(r, kMiddle, 200).fprop.a.format));
  EXPECT_TRUE(is_quantized(resolve(r, kMiddle, 100).dgrad.a.format));
  LinearInfo out = kMiddle;
  out.name = "blocks.30.mamba.out";
  EXPECT_TRUE(is_quantized(resolve(r, out, 100).fprop.a.format));
}

TEST(Overrides, AnUnquantisedWgradOperandTakesTheRotationAway) {
  RecipeOverride dy{.gemm = Gemm::Wgrad, .operand = Operand::A, .format = Format::Bf16};
  const ResolvedLinear r = resolve(edited(find_recipe("nvfp4"), {.overrides = {dy}}), kMiddle, 0);
  EXPECT_EQ(r.wgrad.a, QuantSpec{.format = Format::Bf16});
  EXPECT_EQ(r.wgrad.b.rotation, 0);
}

TEST(Overrides, AFormatWithoutSquareTilesOrStochasticRoundingTakesThemAway) {
  for (const Format f :
       {Format::Mxfp4, Format::Mxfp8E4M3, Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Fp8E5M2}) {
    const ResolvedLinear r =
        resolve(edited(find_recipe("nvfp4"), {.overrides = {{.format = f}}}), kMiddle, 0);
    EXPECT_EQ(r.fprop.b, QuantSpec{.format = f}) << info(f).name;
    EXPECT_EQ(r.dgrad.a.rounding, f == Format::Mxfp4 ? Rounding::Stochastic : Rounding::NearestEven);
    EXPECT_EQ(r.wgrad.b.rotation, 16);
  }
}

TEST(Overrides, KeepWhoseArithmeticTheRunFollows) {
  const Recipe r =
      edited(find_recipe("bf16"), {.overrides = {{.format = Format::Nvfp4}}, .profile = Profile::Te213});
  EXPECT_EQ(resolve(r, kMiddle, 0).fprop.a.profile, Profile::Te213);
}

TEST(Edits, ASwitchOfAnIngredientIsRefusedWhereOnlyAnOverrideQuantises) {
  const RecipeOverride all{.format = Format::Nvfp4};
  EXPECT_THAT(usage_error([&] { edited(find_recipe("bf16"), {.rht = true, .overrides = {all}}); }),
              HasSubstr("precision.rht"));
}

TEST(Glob, StarsCrossDotsAndQuestionMarksAreOneCharacter) {
  EXPECT_TRUE(glob_match("*", "blocks.3.mlp.up"));
  EXPECT_TRUE(glob_match("blocks.3.*", "blocks.3.mlp.up"));
  EXPECT_FALSE(glob_match("blocks.3.*", "blocks.31.mlp.up"));
  EXPECT_TRUE(glob_match("*.mlp.*", "blocks.31.mlp.up"));
  EXPECT_TRUE(glob_match("blocks.?.mlp.up", "blocks.3.mlp.up"));
  EXPECT_FALSE(glob_match("blocks.?.mlp.up", "blocks.31.mlp.up"));
  EXPECT_TRUE(glob_match("*a*b", "xaxbxb"));
  EXPECT_FALSE(glob_match("", "x"));
}

TEST(CheckRecipe, APatternThatMatchesNothingListsNearNames) {
  const std::vector<LinearInfo> linears = model(4);
  const Recipe r = edited(find_recipe("nvfp4"), {.keep_bf16 = {"*.mamba.uot"}});
  const std::string text = usage_error([&] { check_recipe(r, linears, 32); });
  EXPECT_THAT(text, HasSubstr("precision.keep_bf16"));
  EXPECT_THAT(text, HasSubstr("\"*.mamba.out\""));
}

TEST(CheckRecipe, RefusesSizesThatBlocksDoNotDivide) {
  std::vector<LinearInfo> linears = model(4);
  const Recipe& nvfp4 = find_recipe("nvfp4");
  check_recipe(nvfp4, linears, 32);
  EXPECT_THAT(usage_error([&] { check_recipe(nvfp4, linears, 40); }), HasSubstr("T = 40"));
  linears[2].n = 100;
  const std::string text = usage_error([&] { check_recipe(nvfp4, linears, 32); });
  EXPECT_THAT(text, HasSubstr("blocks.1.mamba.in"));
  EXPECT_THAT(text, HasSubstr("N = 100"));
  EXPECT_THAT(text, HasSubstr("keep_bf16 = [\"*.mamba.in\"]"));
  check_recipe(edited(nvfp4, {.keep_bf16 = {"*.mamba.in"}}), linears, 32);
  check_recipe(find_recipe("bf16"), linears, 40);
}

TEST(CheckRecipe, MxFormatsNeedMultiplesOf32) {
  std::vector<LinearInfo> linears = model(4);
  linears[0].k = 48;
  const Recipe mx = edited(find_recipe("nvfp4"), {.overrides = {{.format = Format::Mxfp4}}});
  check_recipe(find_recipe("nvfp4"), linears, 32);
  EXPECT_THAT(usage_error([&] { check_recipe(mx, linears, 32); }), HasSubstr("multiple of 32"));
}

std::string refusal(const RecipeEdits& edits, const char* recipe = "nvfp4") {
  const std::vector<LinearInfo> linears = model(4);
  return usage_error([&] { check_recipe(edited(find_recipe(recipe), edits), linears, 32); });
}

TEST(CheckRecipe, RefusesARecipeThatEveryBlockIsKeptFrom) {
  const std::string text = refusal({.bf16_first = 1, .bf16_last = 3});
  EXPECT_THAT(text, HasSubstr("would quantise nothing"));
  EXPECT_THAT(text, HasSubstr("precision.bf16_first = 1"));
  EXPECT_THAT(text, HasSubstr("precision.bf16_last = 3"));
  EXPECT_THAT(text, HasSubstr("precision.recipe = \"bf16\""));
  const int most = std::numeric_limits<int>::max();
  EXPECT_THAT(refusal({.bf16_first = most, .bf16_last = most}),
              HasSubstr("keep all of the model's 4 blocks"));
  EXPECT_THAT(refusal({.bf16_last = 9}), HasSubstr("precision.bf16_first = 0 (scaled"));
  check_recipe(edited(find_recipe("nvfp4"), {.bf16_first = 1, .bf16_last = 2}), model(4), 32);
}

TEST(CheckRecipe, RefusesPatternsAndOverridesThatLeaveNothingQuantised) {
  EXPECT_THAT(refusal({.keep_bf16 = {"*.in", "*.out"}}), HasSubstr("precision.keep_bf16 = [*.in, *.out]"));
  EXPECT_THAT(refusal({.overrides = {{.format = Format::Bf16}}}), HasSubstr("precision.override"));
  const RecipeOverride later{.from_step = 10, .format = Format::Bf16};
  check_recipe(edited(find_recipe("nvfp4"), {.overrides = {later}}), model(4), 32);
}

TEST(CheckRecipe, RefusesWhatAFormatDoesNotHaveNamingLayerGemmAndOperand) {
  const std::string square = refusal(
      {.overrides = {
           {.gemm = Gemm::Dgrad, .operand = Operand::B, .format = Format::Mxfp8E4M3, .tile = Tile::Square}}});
  EXPECT_THAT(square, HasSubstr("blocks.0.mamba.in (dgrad, operand b = w^T)"));
  EXPECT_THAT(square, HasSubstr("tile = \"row\""));
  const std::string noisy =
      refusal({.overrides = {{.format = Format::Fp8E4M3, .rounding = Rounding::Stochastic}}});
  EXPECT_THAT(noisy, HasSubstr("rounding = \"nearest\""));
  const RecipeOverride half{.gemm = Gemm::Fprop, .operand = Operand::A, .format = Format::Nvfp4};
  EXPECT_THAT(refusal({.overrides = {half}}, "fp32"), HasSubstr("quantise both"));
}

TEST(CheckRecipe, AnUnquantisedOperandIsInTheBaseFormat) {
  const std::string text = refusal({.overrides = {{.gemm = Gemm::Wgrad, .format = Format::Fp32}}});
  EXPECT_THAT(text, HasSubstr("wgrad"));
  EXPECT_THAT(text, HasSubstr("format = \"bf16\""));
}

TEST(CheckRecipe, RefusesAnOverrideThatHoldsForNoStepOrSaysTwoThings) {
  EXPECT_THAT(refusal({.overrides = {{.from_step = 5, .until_step = 5, .format = Format::Mxfp4}}}),
              HasSubstr("hold for no step"));
  const RecipeOverride both{.gemm = Gemm::Fprop, .format = Format::Bf16, .rounding = Rounding::Stochastic};
  EXPECT_THAT(refusal({.overrides = {both}}), HasSubstr("no meaning"));
}

TEST(CheckPatterns, NameTheKeyAndTheNearestNames) {
  const std::vector<LinearInfo> linears = model(4);
  const std::vector<std::string> good = {"*.in", "blocks.3.*"}, bad = {"*.in", "blocks.4.mamba.in"};
  check_patterns(good, linears, "telemetry.layers");
  const std::string text = usage_error([&] { check_patterns(bad, linears, "telemetry.layers"); });
  EXPECT_THAT(text, HasSubstr("telemetry.layers: the pattern \"blocks.4.mamba.in\""));
  EXPECT_THAT(text, HasSubstr("did you mean \"blocks."));
}

TEST(RandomRoles, DifferForEveryOperandOfEveryGemm) {
  std::set<std::uint32_t> roles;
  for (const Gemm g : kGemms) {
    for (const Operand o : kOperands) roles.insert(random_role(g, o));
  }
  EXPECT_EQ(roles.size(), 6u);
}

TEST(Explain, CountsTheLinearsKeptInBf16) {
  const std::vector<LinearInfo> linears = model(62);
  const BaseShare share = base_share(find_recipe("nvfp4"), linears, 0);
  EXPECT_EQ(share.kept, 20);
  EXPECT_EQ(share.linears, 124);
  EXPECT_NEAR(share.by_count, 0.161, 5e-4);
}

// A change of recipe in mid-run.

Recipe switched(std::int64_t step, const char* to, GemmSet gemms = kAllGemms, const char* from = "nvfp4") {
  return edited(find_recipe(from), {.switches = {{.from_step = step, .gemms = gemms, .recipe = to}}});
}

constexpr GemmSet kForward = {true, false, false}, kBackward = {false, true, true};

TEST(Switch, HoldsFromItsStepOnForItsGemmsAlone) {
  const Recipe r = switched(82, "bf16", kForward);
  const ResolvedLinear plain = resolve(find_recipe("nvfp4"), kMiddle, 0);
  EXPECT_EQ(resolve(r, kMiddle, 0), plain);
  EXPECT_EQ(resolve(r, kMiddle, 81), plain);
  for (const std::int64_t step : {82, 83, 1000000}) {
    const ResolvedLinear after = resolve(r, kMiddle, step);
    EXPECT_EQ(after.fprop, resolve(find_recipe("bf16"), kMiddle, 0).fprop);
    EXPECT_EQ(after.dgrad, plain.dgrad);
    EXPECT_EQ(after.wgrad, plain.wgrad);
    EXPECT_TRUE(after.reason.empty());
  }
}

TEST(Switch, OfAllGemmsIsTheOtherRecipe) {
  for (const Recipe& to : recipe_catalog()) {
    if (to.base != Format::Bf16) continue;
    const Recipe r = switched(5, to.name.c_str());
    for (const LinearInfo& linear : model(62)) {
      const ResolvedLinear after = resolve(r, linear, 5), other = resolve(to, linear, 0);
      for (const Gemm g : kGemms) EXPECT_EQ(after.gemm(g), other.gemm(g)) << to.name << " " << linear.name;
      EXPECT_EQ(after.reason.empty(), other.reason.empty());
    }
  }
}

TEST(Switch, BringsTheKeptBlocksOfItsRecipe) {
  const std::vector<LinearInfo> linears = model(62);
  const Recipe r = switched(10, "fp8-paper");  // the first block and the last two, where nvfp4 keeps 2 and 8
  EXPECT_FALSE(resolve(r, linears[2], 9).quantized());
  EXPECT_TRUE(resolve(r, linears[2], 10).quantized());
  EXPECT_EQ(resolve(r, linears[0], 10).reason, "first 1 of 62 blocks, from step 10");
  const Recipe backward = switched(10, "fp8-paper", kBackward);
  EXPECT_FALSE(is_quantized(resolve(backward, linears[2], 10).fprop.a.format));  // nvfp4's rule
  EXPECT_TRUE(is_quantized(resolve(backward, linears[2], 10).dgrad.a.format));   // fp8-paper's
  const Recipe upward = switched(10, "nvfp4", kAllGemms, "bf16");
  EXPECT_EQ(resolve(upward, linears[61], 9).reason, "recipe bf16");
  EXPECT_TRUE(resolve(upward, linears[61], 10).quantized());
  EXPECT_TRUE(quantizes(upward));
  EXPECT_FALSE(quantizes_before_switches(upward));
}

TEST(Switch, SeveralActInOrderAndTheLaterWin) {
  const Recipe r =
      edited(find_recipe("mxfp4"), {.switches = {{.from_step = 10, .recipe = "nvfp4"},
                                                 {.from_step = 20, .gemms = kForward, .recipe = "bf16"},
                                                 {.from_step = 20, .gemms = kBackward, .recipe = "mxfp8"}}});
  check_recipe(r, model(62), 128);
  EXPECT_EQ(resolve(r, kMiddle, 9).fprop.a.format, Format::Mxfp4);
  EXPECT_EQ(resolve(r, kMiddle, 10).fprop.a.format, Format::Nvfp4);
  EXPECT_EQ(resolve(r, kMiddle, 20).fprop.a.format, Format::Bf16);
  EXPECT_EQ(resolve(r, kMiddle, 20).wgrad.a.format, Format::Mxfp8E4M3);
  EXPECT_EQ(recipe_before_switch(r, 0), "mxfp4");
  EXPECT_EQ(recipe_before_switch(r, 2), "nvfp4");
}

TEST(Switch, TakesTheRecipeWithoutTheIngredientsButWithWhatDescribesTheRun) {
  const Recipe r = edited(find_recipe("mxfp4"), {.rht = false,
                                                 .keep_bf16 = {"*.mamba.out"},
                                                 .overrides = {{.gemm = Gemm::Fprop, .format = Format::Bf16}},
                                                 .switches = {{.from_step = 10, .recipe = "nvfp4"}},
                                                 .non_finite = NonFinite::AsTe});
  const ResolvedLinear after = resolve(r, kMiddle, 10);
  EXPECT_EQ(after.wgrad.a.rotation, 16);
  EXPECT_EQ(after.fprop.a.format, Format::Nvfp4);
  EXPECT_EQ(after.fprop.a.non_finite, NonFinite::AsTe);
  EXPECT_FALSE(resolve(r, model(62)[61], 10).quantized());
}

TEST(Switch, IsNamedByItsPass) {
  EXPECT_EQ(describe(kAllGemms), "all");
  EXPECT_EQ(describe(kForward), "forward");
  EXPECT_EQ(describe(kBackward), "backward");
  EXPECT_EQ(describe(GemmSet{true, false, true}), "fprop, wgrad");
}

TEST(Switch, ThatCannotBeOrDoesNothingIsRefused) {
  const std::vector<LinearInfo> linears = model(4);
  const auto refused = [&](const Recipe& r) { return usage_error([&] { check_recipe(r, linears, 32); }); };
  EXPECT_THAT(refused(switched(0, "bf16")), HasSubstr("set precision.recipe = \"bf16\""));
  EXPECT_THAT(refused(switched(3, "bf16", GemmSet{})), HasSubstr("precision.switch.gemms"));
  EXPECT_THAT(refused(switched(3, "fp32")), HasSubstr("is in fp32, and in \"nvfp4\" it is in bf16"));
  EXPECT_THAT(refused(switched(3, "nvfp4", kForward)), HasSubstr("changes nothing: fprop of every linear"));
  EXPECT_THAT(refused(edited(find_recipe("nvfp4"), {.switches = {{.from_step = 9, .recipe = "bf16"},
                                                                 {.from_step = 8, .recipe = "mxfp8"}}})),
              HasSubstr("the switch before it is at step 9"));
  EXPECT_THAT(refused(edited(find_recipe("bf16"),
                             {.switches = {{.from_step = 9, .recipe = "nvfp4", .bf16_last = 4}}})),
              HasSubstr("recipe \"nvfp4\" would quantise nothing"));
  EXPECT_THAT(usage_error([] { switched(3, "bf61"); }), HasSubstr("did you mean \"bf16\""));
  std::vector<LinearInfo> odd = model(4);
  odd[2].k = 48;  // enough for nvfp4, not for the 32 of mxfp8
  check_recipe(find_recipe("nvfp4"), odd, 32);
  EXPECT_THAT(usage_error([&] { check_recipe(switched(3, "mxfp8"), odd, 32); }), HasSubstr("K = 48"));
  check_recipe(switched(3, "bf16", kForward), linears, 32);
}

TEST(Explain, NamesRotationSignsBitsAndMsEden) {
  const std::vector<LinearInfo> linears = model(62);
  const std::string quartet = explain(find_recipe("quartet2"), linears, 0, 1.0);
  EXPECT_THAT(quartet, HasSubstr("MS-EDEN of 16"));
  EXPECT_THAT(quartet, HasSubstr("RHT-128 redrawn"));
  EXPECT_THAT(quartet, HasSubstr("its quantised w and x, decoded"));
  const std::string bits =
      explain(edited(find_recipe("nvfp4"), {.rht_size = 32, .sr_bits = 5}), linears, 0, 1.0);
  EXPECT_THAT(bits, HasSubstr("stochastic, 5 bits"));
  EXPECT_THAT(bits, HasSubstr("RHT-32 fixed"));
}

TEST(Explain, SaysWhatASwitchChangesAndShowsThePlanOfTheStep) {
  const std::vector<LinearInfo> linears = model(62);
  const Recipe r = switched(820, "bf16", kForward);
  const std::string before = explain(r, linears, 819, 1.0), after = explain(r, linears, 820, 1.0);
  EXPECT_THAT(before, HasSubstr("From step 820 on fprop as in recipe bf16 instead of nvfp4"));
  EXPECT_THAT(before, HasSubstr("--step 820 shows that plan"));
  EXPECT_THAT(after, HasSubstr("the plan below has it"));
  EXPECT_THAT(before, HasSubstr("fprop  A  x     K     nvfp4"));
  EXPECT_THAT(after, ::testing::Not(HasSubstr("fprop  A  x     K     nvfp4")));
}

}  // namespace
}  // namespace nibble
