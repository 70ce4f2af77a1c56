// SPDX-License-Identifier: Apache-2.0
#include "recipe/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace nibble {
namespace {

/// The native product that reads codes of this format; Exact: there is none.
Product native_product(Format format) {
  switch (format) {
    case Format::Fp8E4M3:
    case Format::Fp8E5M2:
      return Product::Fp8;
    case Format::Nvfp4:
      return Product::Fp4;
    case Format::Mxfp8E4M3:
    case Format::Mxfp8E5M2:
      return Product::Mxfp8;
    default:
      return Product::Exact;
  }
}

bool is_e5m2(Format f) { return f == Format::Fp8E5M2 || f == Format::Mxfp8E5M2; }

bool has(const NativeGemm& native, Product product) {
  return product == Product::Fp8 ? native.fp8 : product == Product::Fp4 ? native.fp4 : native.mxfp8;
}

/// Whether the sums are those of Blackwell's FP4 pipe.
bool is_truncating(const Recipe& recipe, const GemmRecipe& gemm) {
  const Format format = gemm.a.format;
  return recipe.accumulate == Accumulation::Truncating && gemm.b.format == format &&
         (format == Format::Nvfp4 || format == Format::Mxfp4);
}

/// Rows of a, rows of b, and the summed axis, which a rotation pads to its own size.
struct Sizes {
  std::int64_t m, n, summed;
};
Sizes sizes_of(const LinearInfo& linear, const GemmRecipe& recipe, Gemm gemm, std::int64_t tokens) {
  const std::int64_t pad = std::max<std::int64_t>(recipe.a.rotation, 1);
  const auto padded = [pad](std::int64_t size) { return (size + pad - 1) / pad * pad; };
  switch (gemm) {
    case Gemm::Fprop:
      return {tokens, linear.n, padded(linear.k)};
    case Gemm::Dgrad:
      return {tokens, linear.k, padded(linear.n)};
    default:
      return {linear.n, linear.k, padded(tokens)};
  }
}

std::string_view reason_to_emulate(const Recipe& recipe, const LinearInfo& linear, const GemmRecipe& gemm,
                                   Gemm which, std::int64_t tokens, const NativeGemm& native) {
  if (!is_quantized(gemm.a.format) || !is_quantized(gemm.b.format)) return "one operand is not quantised";
  const Product product = native_product(gemm.a.format);
  if (product != native_product(gemm.b.format)) return "operands in different formats";
  if (product == Product::Exact) return "there is no product of such codes";
  if (is_e5m2(gemm.a.format) && is_e5m2(gemm.b.format)) return "both operands are E5M2";
  if (gemm.a.tensor_scaling == TensorScaling::Row || gemm.b.tensor_scaling == TensorScaling::Row)
    return "an operand has a scale a row";
  if (reads_planted_scales(recipe, gemm, linear)) return "a fault is planted in its block scales";
  const Sizes sizes = sizes_of(linear, gemm, which, tokens);
  const bool fp8 = product == Product::Fp8;
  if (sizes.m % 16 != 0 || sizes.n % 16 != 0) return "an axis of the result is not a multiple of 16";
  if (sizes.summed % (fp8 ? 16 : 32) != 0)
    return fp8 ? "the summed axis is not a multiple of 16" : "the summed axis is not a multiple of 32";
  if (!has(native, product)) return "no such tensor cores here, or switched off";
  return {};
}

/// The linears that one line of explain_products speaks of.
struct Group {
  Gemm gemm;
  ProductChoice choice;
  std::vector<std::string_view> linears;
};

std::string describe(const ProductChoice& c) {
  const std::string_view how = is_native(c.product)               ? "native"
                               : c.product == Product::Truncating ? "modelled"
                                                                  : "emulated-exact";
  return fmt::format("{}, {}", how, op_name(c.product));
}

}  // namespace

std::string_view op_name(Product product) {
  constexpr std::array<std::string_view, 6> kNames = {"matmul",     "matmul_blocks", "matmul_truncating",
                                                      "matmul_fp8", "matmul_fp4",    "matmul_mxfp8"};
  return kNames.at(static_cast<std::size_t>(product));
}

bool is_centred(const GemmRecipe& recipe, Gemm gemm) {
  return recipe.centre && is_quantized(recipe.a.format) &&
         (gemm != Gemm::Wgrad || is_quantized(recipe.b.format));
}

bool reads_planted_scales(const Recipe& recipe, const GemmRecipe& gemm, const LinearInfo& linear) {
  return !recipe.scale_binade_layers.empty() && is_quantized(gemm.a.format) &&
         glob_match(recipe.scale_binade_layers, linear.name);
}

ProductChoice choose_product(const Recipe& recipe, const LinearInfo& linear, const ResolvedLinear& plan,
                             Gemm gemm, std::int64_t tokens, const NativeGemm& native) {
  const GemmRecipe& operands = plan.gemm(gemm);
  if (!is_quantized(operands.a.format) && !is_quantized(operands.b.format)) return {};
  if (is_truncating(recipe, operands)) return {.product = Product::Truncating};
  const std::string_view why = reason_to_emulate(recipe, linear, operands, gemm, tokens, native);
  if (why.empty()) return {.product = native_product(operands.a.format)};
  const bool blocks = has_block_scales(operands.a) && has_block_scales(operands.b);
  return {.product = blocks ? Product::ExactBlocks : Product::Exact, .why = why};
}

std::string ProductCounts::text() const {
  if (quantized() == 0) return "none quantised";
  std::string out;
  const auto add = [&](int count, std::string_view how) {
    if (count == 0) return;
    out += out.empty() ? fmt::format("{} of {} quantised GEMMs {}", count, quantized(), how)
                       : fmt::format(", {} {}", count, how);
  };
  add(native, "native");
  add(modelled, "summed by the model of Blackwell's FP4 pipe");
  add(emulated, "emulated-exact");
  std::string reasons;
  for (const auto& [reason, count] : why) {
    reasons += reasons.empty() ? "" : "; ";
    reasons += why.size() == 1 ? std::string(reason) : fmt::format("{}: {}", reason, count);
  }
  return reasons.empty() ? out : fmt::format("{} ({})", out, reasons);
}

ProductCounts count_products(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                             std::int64_t tokens, const NativeGemm& native) {
  ProductCounts counts;
  for (const LinearInfo& linear : linears) {
    const ResolvedLinear plan = resolve(recipe, linear, step);
    for (const Gemm gemm : kGemms) {
      const ProductChoice c = choose_product(recipe, linear, plan, gemm, tokens, native);
      if (is_native(c.product)) ++counts.native;
      if (c.product == Product::Truncating) ++counts.modelled;
      if (c.why.empty()) continue;
      ++counts.emulated;
      ++counts.why[c.why];
    }
  }
  return counts;
}

bool emulates(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens,
              const NativeGemm& native) {
  const std::vector<std::int64_t> steps = change_points(recipe);
  return std::any_of(steps.begin(), steps.end(), [&](std::int64_t step) {
    const ProductCounts counts = count_products(recipe, linears, step, tokens, native);
    return counts.emulated + counts.modelled > 0;
  });
}

std::string native_blocks(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens,
                          const NativeGemm& native) {
  bool fp4 = false, mxfp8 = false;
  for (const std::int64_t step : change_points(recipe)) {
    for (const LinearInfo& linear : linears) {
      const ResolvedLinear plan = resolve(recipe, linear, step);
      for (const Gemm gemm : kGemms) {
        const Product product = choose_product(recipe, linear, plan, gemm, tokens, native).product;
        fp4 = fp4 || product == Product::Fp4;
        mxfp8 = mxfp8 || product == Product::Mxfp8;
      }
    }
  }
  return fp4 && mxfp8 ? "nvfp4, mxfp8" : fp4 ? "nvfp4" : mxfp8 ? "mxfp8" : "";
}

std::string explain_products(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                             std::int64_t tokens, const NativeGemm& native, std::string_view where) {
  constexpr std::size_t kNamed = 3;
  std::vector<Group> groups;
  for (const Gemm gemm : kGemms) {
    for (const LinearInfo& linear : linears) {
      const ProductChoice c =
          choose_product(recipe, linear, resolve(recipe, linear, step), gemm, tokens, native);
      if (!reads_codes(c.product) && c.why.empty()) continue;  // not quantised
      const auto same = std::find_if(groups.begin(), groups.end(),
                                     [&](const Group& g) { return g.gemm == gemm && g.choice == c; });
      Group& group = same != groups.end() ? *same : groups.emplace_back(Group{gemm, c, {}});
      group.linears.emplace_back(linear.name);
    }
  }
  std::string out =
      fmt::format("\nQuantised products on {}, T = {} tokens of a micro-batch\n", where, tokens);
  for (const Group& g : groups) {
    const std::size_t named = std::min(g.linears.size(), kNamed);
    std::string names;
    for (std::size_t i = 0; i < named; ++i) {
      names += i > 0 ? ", " : "";
      names += g.linears[i];
    }
    if (named < g.linears.size()) names += fmt::format(" and {} more", g.linears.size() - named);
    fmt::format_to(std::back_inserter(out), "  {:<6} {:<29} {}{}\n", name(g.gemm), describe(g.choice), names,
                   g.choice.why.empty() ? "" : fmt::format("  ({})", g.choice.why));
  }
  if (groups.empty()) out += "  none\n";
  return out;
}

}  // namespace nibble
