// SPDX-License-Identifier: Apache-2.0
#include "recipe/product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <vector>

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr NativeGemm kBlackwell = native_gemm(100), kHopper = native_gemm(90);

LinearInfo linear(std::int64_t n = 64, std::int64_t k = 96) {
  return {.name = "blocks.0.mlp.up", .kind = "mlp.up", .block = 0, .blocks = 1, .n = n, .k = k};
}

Recipe everywhere(std::string_view name, RecipeEdits edits = {}) {
  edits.bf16_first = edits.bf16_last = 0;
  return edited(find_recipe(name), edits);
}

ProductChoice choice(const Recipe& recipe, const LinearInfo& l, Gemm gemm, std::int64_t tokens = 128,
                     const NativeGemm& native = kBlackwell) {
  return choose_product(recipe, l, resolve(recipe, l, 0), gemm, tokens, native);
}

TEST(Product, CodesAreMultipliedWhereTheCardHasTheirFormat) {
  const struct {
    const char* recipe;
    Product native;
  } kRecipes[] = {{"nvfp4", Product::Fp4},      {"nvfp4-4over6", Product::Fp4}, {"quartet2", Product::Fp4},
                  {"tetrajet2", Product::Fp4},  {"mxfp8", Product::Mxfp8},      {"fp8-current", Product::Fp8},
                  {"fp8-delayed", Product::Fp8}};
  for (const auto& [name, native] : kRecipes) {
    const Recipe recipe = everywhere(name);
    for (const Gemm gemm : kGemms) {
      EXPECT_EQ(choice(recipe, linear(), gemm), (ProductChoice{native, {}})) << name;
      const ProductChoice hopper = choice(recipe, linear(), gemm, 128, kHopper);
      EXPECT_EQ(hopper.product, native == Product::Fp8 ? native : Product::Exact) << name;
      EXPECT_EQ(hopper.why.empty(), native == Product::Fp8) << "emulation has a reason: " << name;
      EXPECT_EQ(choice(recipe, linear(), gemm, 128, {}).product, Product::Exact) << name;
    }
  }
  EXPECT_EQ(choice(everywhere("averis"), linear(), Gemm::Fprop).product, Product::Fp4)
      << "the product of the means is added to the sums";
  for (const char* base : {"bf16", "fp32"})
    EXPECT_EQ(choice(find_recipe(base), linear(), Gemm::Fprop), ProductChoice{});
}

TEST(Product, WhatNoTensorCoreMultipliesIsEmulatedAndSaysWhy) {
  const auto why = [](const Recipe& r, const LinearInfo& l, Gemm g, std::int64_t tokens = 128) {
    const ProductChoice c = choice(r, l, g, tokens);
    EXPECT_FALSE(reads_codes(c.product));
    return std::string(c.why);
  };
  const Recipe nvfp4 = everywhere("nvfp4"), fp8 = everywhere("fp8-current");
  for (const char* other : {"mxfp4", "fp8-paper", "fp8-deepseek"})
    EXPECT_THAT(why(everywhere(other), linear(), Gemm::Fprop), HasSubstr("no product of such codes"));
  EXPECT_EQ(choice(everywhere("fp8-deepseek"), linear(), Gemm::Wgrad).product, Product::ExactBlocks);
  const Recipe half = everywhere("nvfp4", {.overrides = {{.operand = Operand::B, .format = Format::Bf16}}});
  EXPECT_THAT(why(half, linear(), Gemm::Fprop), HasSubstr("one operand is not quantised"));
  const Recipe mixed = everywhere(
      "nvfp4", {.rht = false, .overrides = {{.operand = Operand::B, .format = Format::Mxfp8E4M3}}});
  EXPECT_THAT(why(mixed, linear(), Gemm::Fprop), HasSubstr("different formats"));
  const Recipe e5m2 = everywhere("mxfp8", {.overrides = {{.format = Format::Mxfp8E5M2}}});
  EXPECT_THAT(why(e5m2, linear(), Gemm::Fprop), HasSubstr("E5M2"));
  EXPECT_THAT(why(everywhere("nvfp4", {.weights_2d = false, .tensor_scaling = TensorScaling::Row}), linear(),
                  Gemm::Fprop),
              HasSubstr("a scale a row"));
  Recipe planted = nvfp4;
  planted.scale_binade_layers = "*.up";
  EXPECT_THAT(why(planted, linear(), Gemm::Wgrad), HasSubstr("planted"));
  EXPECT_THAT(why(nvfp4, linear(64, 48), Gemm::Fprop), HasSubstr("summed axis is not a multiple of 32"));
  EXPECT_EQ(choice(nvfp4, linear(64, 48), Gemm::Dgrad).product, Product::Fp4);
  EXPECT_THAT(why(nvfp4, linear(48, 64), Gemm::Dgrad), HasSubstr("summed axis"));
  EXPECT_THAT(why(nvfp4, linear(), Gemm::Wgrad, 48), HasSubstr("summed axis"));
  EXPECT_THAT(why(fp8, linear(24, 64), Gemm::Fprop), HasSubstr("result is not a multiple of 16"));
  EXPECT_THAT(why(fp8, linear(24, 64), Gemm::Dgrad), HasSubstr("summed axis is not a multiple of 16"));
}

/// A rotation pads what is summed to its own size.
TEST(Product, ARotatedAxisIsAsLongAsItsPadding) {
  const Recipe recipe = everywhere("nvfp4", {.rht_size = 32});
  EXPECT_EQ(choice(recipe, linear(), Gemm::Wgrad, 48).product, Product::Fp4);
  EXPECT_EQ(choice(everywhere("nvfp4"), linear(), Gemm::Wgrad, 48).product, Product::Exact);
}

TEST(Product, TruncatingSumsAreModelledOnEveryCard) {
  const Recipe recipe = everywhere("nvfp4", {.accumulate = Accumulation::Truncating});
  for (const NativeGemm& native : {kBlackwell, NativeGemm{}})
    EXPECT_EQ(choice(recipe, linear(64, 48), Gemm::Fprop, 128, native),
              (ProductChoice{Product::Truncating, {}}));
}

std::vector<LinearInfo> five_linears() {
  std::vector<LinearInfo> out;
  for (int i = 0; i < 5; ++i) {
    out.push_back(linear(i == 3 ? 24 : 64, i == 4 ? 48 : 96));
    out.back().name = fmt::format("blocks.0.mlp.l{}", i);
    out.back().position = i;
  }
  return out;
}

TEST(Product, ExplainNamesEveryWayItsReasonAndItsLinears) {
  const std::vector<LinearInfo> all = five_linears();
  const std::string text =
      explain_products(everywhere("nvfp4"), all, 0, 128, kBlackwell, "compute capability 10.0");
  EXPECT_THAT(text, HasSubstr("on compute capability 10.0, T = 128 tokens"));
  EXPECT_THAT(text, HasSubstr("fprop  native, matmul_fp4"));
  EXPECT_THAT(text, HasSubstr("blocks.0.mlp.l0, blocks.0.mlp.l1, blocks.0.mlp.l2\n"));
  EXPECT_THAT(text,
              HasSubstr("emulated-exact, matmul        blocks.0.mlp.l3  (an axis of the result is not a "
                        "multiple of 16)\n"));
  EXPECT_THAT(text, HasSubstr("blocks.0.mlp.l4  (the summed axis is not a multiple of 32)\n"));
  EXPECT_THAT(text, HasSubstr("wgrad  native, matmul_fp4            blocks.0.mlp.l0, blocks.0.mlp.l1, "
                              "blocks.0.mlp.l2 and 1 more\n"));
  const std::string off = explain_products(everywhere("nvfp4"), all, 0, 128, kHopper, "x");
  EXPECT_THAT(off, Not(HasSubstr("native,")));
  EXPECT_THAT(off, HasSubstr("(no such tensor cores here, or switched off)"));
  EXPECT_THAT(explain_products(find_recipe("bf16"), all, 0, 128, kBlackwell, "x"), HasSubstr("none\n"));
}

TEST(Product, CountsAddUpOverARunsPrecisions) {
  const std::vector<LinearInfo> all = five_linears();
  const Recipe nvfp4 = everywhere("nvfp4");
  const ProductCounts counts = count_products(nvfp4, all, 0, 128, kBlackwell);
  EXPECT_EQ(
      counts.text(),
      "11 of 15 quantised GEMMs native, 4 emulated-exact (an axis of the result is not a multiple of 16: 2; "
      "the summed axis is not a multiple of 32: 2)");
  EXPECT_EQ(count_products(find_recipe("bf16"), all, 0, 128, kBlackwell).text(), "none quantised");
  EXPECT_TRUE(emulates(nvfp4, all, 128, kBlackwell));
  const std::span<const LinearInfo> plain = std::span(all).first(3);
  EXPECT_FALSE(emulates(nvfp4, plain, 128, kBlackwell));
  EXPECT_TRUE(emulates(nvfp4, plain, 128, kHopper));
  EXPECT_FALSE(emulates(find_recipe("bf16"), plain, 128, {}));
  const Recipe switched = edited(nvfp4, {.switches = {{.from_step = 7, .recipe = "mxfp8"}}});
  EXPECT_EQ(native_blocks(switched, plain, 128, kBlackwell), "nvfp4, mxfp8");
  EXPECT_EQ(native_blocks(nvfp4, plain, 128, kBlackwell), "nvfp4");
  EXPECT_EQ(native_blocks(everywhere("fp8-current"), plain, 128, kBlackwell), "") << "no block format";
  EXPECT_EQ(native_blocks(nvfp4, plain, 128, kHopper), "");
}

}  // namespace
}  // namespace nibble
