// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/quantized_attention.h"
#include "ops/gemm/alpha.h"
#include "ops/quantize/quantize.h"
#include "quant/fp8_tensor.h"
#include "quant/mxfp8.h"
#include "quant/nvfp4.h"
#include "quant/operand.h"
#include "quant/rounders.h"

/// The matrices inside attention, quantised in place as they are made: what quantized_attention's backends
/// share. Nothing is stored as codes: the values that a product reads take the place of the numbers.
namespace nibble {

/// The tensor scale of a matrix of which the largest magnitude is `amax`.
struct LineScale {
  TensorScale nvfp4;
  Fp8Scale fp8;

  NIBBLE_HD static LineScale from_amax(Format format, float amax) {
    LineScale s;
    if (format == Format::Nvfp4) s.nvfp4 = TensorScale::from_amax(amax);
    if (format == Format::Fp8E4M3) s.fp8 = Fp8Scale::from_amax<E4M3>(amax, kFloatMax);
    if (format == Format::Fp8E5M2) s.fp8 = Fp8Scale::from_amax<E5M2>(amax, kFloatMax);
    return s;
  }
  /// What a product takes as this operand's scale (Quantize::scale).
  NIBBLE_HD float of_product(Format format) const {
    return format == Format::Nvfp4                                  ? nvfp4.amax
           : format == Format::Fp8E4M3 || format == Format::Fp8E5M2 ? fp8.decode
                                                                    : 1.0f;
  }
};

/// Values under one scale along a line.
NIBBLE_HD constexpr int line_block(Format format) {
  return format == Format::Nvfp4 ? 16 : format == Format::Mxfp8E4M3 ? 32 : 1;
}

/// One block of a line: x, x + stride, ... of which `count` exist; the others count as 0.
NIBBLE_HD void quantize_line_block(Format format, const LineScale& scale, float* x, std::int64_t stride,
                                   std::int64_t count) {
  if (format == Format::Fp8E4M3) {
    *x = encode_fp8<E4M3>(*x, scale.fp8).value();
  } else if (format == Format::Fp8E5M2) {
    *x = encode_fp8<E5M2>(*x, scale.fp8).value();
  } else if (format == Format::Nvfp4) {
    float v[16];
    for (int j = 0; j < 16; ++j) v[j] = j < count ? x[j * stride] : 0.0f;
    const Nvfp4Block block = encode_block(v, scale.nvfp4, Profile::Te, NearestEven{});
    for (int j = 0; j < 16 && j < count; ++j)
      x[j * stride] = exact_operand(unpack_code(block.codes + j / 2, j % 2), block.scale).value();
  } else if (format == Format::Mxfp8E4M3) {
    float v[32];
    for (int j = 0; j < 32; ++j) v[j] = j < count ? x[j * stride] : 0.0f;
    const Mxfp8Block<E4M3> block = encode_mxfp8<E4M3>(v);
    for (int j = 0; j < 32 && j < count; ++j)
      x[j * stride] = exact_operand(block.codes[j], block.scale).value();
  }
}

/// A whole line of n numbers, blocks counted from its first one.
NIBBLE_HD void quantize_line(Format format, const LineScale& scale, float* x, std::int64_t stride,
                             std::int64_t n) {
  if (!is_quantized(format)) return;
  const int block = line_block(format);
  for (std::int64_t i = 0; i < n; i += block)
    quantize_line_block(format, scale, x + i * stride, stride, n - i < block ? n - i : block);
}

/// Of probabilities, which are at most 1.
NIBBLE_HD LineScale probability_scale(Format format) { return LineScale::from_amax(format, 1.0f); }

/// Whether a format has one scale for all of a matrix.
constexpr bool needs_amax(Format format) { return is_quantized(format) && info(format).tensor_scale; }

/// MatMul's alpha of two operands, on the host.
inline float alpha_of(const AttentionOperand& a, const AttentionOperand& b) {
  return alpha_of(a.scale, b.scale, gemm_inverse_range(a.format, b.format));
}
/// Likewise of a matrix inside with an operand.
inline float alpha_of(Format format, const LineScale& scale, const AttentionOperand& b) {
  const float own = scale.of_product(format);
  return alpha_of(&own, b.scale, gemm_inverse_range(format, b.format));
}

}  // namespace nibble
