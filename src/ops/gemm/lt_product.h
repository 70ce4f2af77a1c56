// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "ops/gemm/coded_product.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/row_scales.h"

/// What cuBLASLt is asked for, as plain numbers: made and tested without a GPU or the library. [CUBLAS]
///
/// The library thinks in columns: element (i, j) of a matrix lies at i + j ld. Our row-major c[M, N] is
/// its D[N, M], so it computes c^T = b a^T: its first operand A is our b, its second operand B our a.
namespace nibble {

enum class LtType : std::uint8_t { F32, BF16, E4M3, E5M2, E2M1 };
constexpr int bits_of(LtType type) {
  return type == LtType::F32 ? 32 : type == LtType::BF16 ? 16 : type == LtType::E2M1 ? 4 : 8;
}

/// The scales that the tensor cores or the library apply to an operand.
enum class LtScale : std::uint8_t {
  None,
  Tensor,     ///< one FP32 number
  Vec16E4M3,  ///< NVFP4: an E4M3 scale every 16 elements of the summed axis
  Vec32E8M0,  ///< MXFP8: an E8M0 scale every 32
};

struct LtMatrix {
  LtType type = LtType::F32;
  std::int64_t rows = 0, cols = 0, ld = 0;  ///< ld in elements
  /// Bytes that the address of every column is a multiple of: 2, 4, 8 or 16. More is never asked for: the
  /// library's choice would depend on where an allocation happens to lie, and no kernel needs it.
  int alignment = 16;
  auto operator<=>(const LtMatrix&) const = default;
};

/// D = alpha * op(A) op(B) (+ bias of D's rows) (+ beta * D), products summed in FP32.
struct LtProduct {
  LtMatrix a, b, d;
  bool transpose_a = false, transpose_b = false;
  LtScale scale = LtScale::None;
  bool accumulate = false;       ///< beta = 1
  bool bias = false;             ///< FP32, one a row of D
  bool alpha_on_device = false;  ///< else alpha is known on the host
  bool fast_accumulation = false;
  auto operator<=>(const LtProduct&) const = default;
};

/// Null when the library's matrices cannot express an operand: its rows overlap. Alpha is on the device where
/// a scale is. Where our own kernel finishes the product, what the library computes is the plain sums.
std::optional<LtProduct> lt_product(const MatMul& g);

/// The same for codes. Scales of blocks and of FP8 tensors go to the library; the amax of NVFP4 tensors into
/// alpha.
LtProduct lt_product(const CodedProduct& g);

/// Whether the library writes FP32 sums, contiguous, and our own kernel makes g.c_MN of them: it would round
/// a bias to BF16 before adding it to a BF16 result, and knows no scales a row.
inline bool finished_by_us(const MatMul& g) {
  return (g.c_MN.dtype() == DType::BF16 && !g.bias_N.empty()) || has_row_scales(g);
}

}  // namespace nibble
