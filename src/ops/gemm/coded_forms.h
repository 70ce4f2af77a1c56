// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/coded_product.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "quant/nvfp4.h"

/// The three products of codes in one form.
namespace nibble {

inline CodedProduct coded(const MatMulFp8& g) {
  return {.op = "matmul_fp8",
          .a = {.format = g.a_format, .codes = g.a_MK, .scale = g.a_scale},
          .b = {.format = g.b_format, .codes = g.b_NK, .scale = g.b_scale},
          .c_MN = g.c_MN,
          .beta = g.beta,
          .fast_accumulation = g.fast_accumulation,
          .bias_N = g.bias_N};
}

inline CodedProduct coded(const MatMulFp4& g) {
  return {.op = "matmul_fp4",
          .a = {.format = Format::Nvfp4, .codes = g.a_codes, .scales = g.a_scales, .scale = g.a_amax},
          .b = {.format = Format::Nvfp4, .codes = g.b_codes, .scales = g.b_scales, .scale = g.b_amax},
          .c_MN = g.c_MN,
          .inverse_range = nvfp4::kInverseRangeSquared,
          .beta = g.beta,
          .bias_N = g.bias_N};
}

inline CodedProduct coded(const MatMulMxfp8& g) {
  return {.op = "matmul_mxfp8",
          .a = {.format = g.a_format, .codes = g.a_codes, .scales = g.a_scales},
          .b = {.format = g.b_format, .codes = g.b_codes, .scales = g.b_scales},
          .c_MN = g.c_MN,
          .beta = g.beta,
          .bias_N = g.bias_N};
}

}  // namespace nibble
