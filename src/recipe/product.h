// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "quant/native_gemm.h"
#include "recipe/resolve.h"

namespace nibble {

/// Which product multiplies the operands of one GEMM. Linear multiplies so, and `explain` and the run's log
/// say so: all ask choose_product().
enum class Product : std::uint8_t {
  Exact,        ///< matmul: operands as they are, quantised ones as exact BF16 numbers, code x block scale
  ExactBlocks,  ///< matmul_blocks: the same with FP32 block scales beside the elements
  Truncating,   ///< matmul_truncating: the codes, added up by the published model of Blackwell's FP4 pipe
  Fp8,          ///< matmul_fp8: the codes themselves, on tensor cores that have the format; so the next two
  Fp4,          ///< matmul_fp4
  Mxfp8,        ///< matmul_mxfp8
};

constexpr bool reads_codes(Product p) { return p >= Product::Truncating; }
constexpr bool is_native(Product p) { return p >= Product::Fp8; }
/// Whether block scales lie in tiles of 128 x 4 (quant/swizzle.h), as tensor cores read them.
constexpr bool reads_swizzled_scales(Product p) { return p == Product::Fp4 || p == Product::Mxfp8; }

/// Whether the format's scales are FP32 ones a block, which lie beside its elements.
constexpr bool has_block_scales(const QuantSpec& spec) { return spec.format == Format::Fp8BlockFp32E4M3; }

std::string_view op_name(Product product);  ///< "matmul_fp4"

struct ProductChoice {
  Product product = Product::Exact;
  /// Of a quantised GEMM that is multiplied as exact BF16 numbers: why not as it is stored. A constant text.
  std::string_view why = {};

  friend bool operator==(const ProductChoice&, const ProductChoice&) = default;
};

/// How the step multiplies `gemm` of `linear`, which `plan` resolves, over `tokens` tokens, where products of
/// `native` exist. Codes are multiplied where all of this holds:
///   both operands are FP8 with one scale a tensor, or NVFP4 with one, or MXFP8, and not both E5M2
///   rows and columns of the result are multiples of 16, the summed axis of 32 (FP8 with one scale: of 16)
///   `native` has it, and no fault is planted in the block scales
/// and under accumulate = truncating those of two NVFP4 or two MXFP4 operands, by matmul_truncating. A pure
/// function.
ProductChoice choose_product(const Recipe& recipe, const LinearInfo& linear, const ResolvedLinear& plan,
                             Gemm gemm, std::int64_t tokens, const NativeGemm& native);

/// Whether this GEMM takes the mean over tokens out of x and dy (GemmRecipe::centre): where those of its
/// operands that have tokens are quantised.
bool is_centred(const GemmRecipe& recipe, Gemm gemm);

/// Whether the planted fault has the product read the block scales of one operand one binade too large.
bool reads_planted_scales(const Recipe& recipe, const GemmRecipe& gemm, const LinearInfo& linear);

/// How the quantised GEMMs of one step are multiplied.
struct ProductCounts {
  int native = 0, modelled = 0, emulated = 0;
  std::map<std::string_view, int> why;  ///< of the emulated ones

  int quantized() const { return native + modelled + emulated; }
  /// "84 of 96 quantised GEMMs native, 12 emulated-exact (the summed axis is not a multiple of 32: 12)";
  /// "none quantised".
  std::string text() const;
};
ProductCounts count_products(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                             std::int64_t tokens, const NativeGemm& native);

/// Whether some quantised GEMM is not native in some step of a run.
bool emulates(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens,
              const NativeGemm& native);

/// The block formats whose codes are multiplied as they are in some step of a run: "nvfp4", "nvfp4, mxfp8" or
/// nothing.
std::string native_blocks(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t tokens,
                          const NativeGemm& native);

/// What explain says of products, a line for each GEMM and way of multiplying it, with the reason and the
/// linears.
///   where   whose products they are: "compute capability 10.0"
std::string explain_products(const Recipe& recipe, std::span<const LinearInfo> linears, std::int64_t step,
                             std::int64_t tokens, const NativeGemm& native, std::string_view where);

}  // namespace nibble
