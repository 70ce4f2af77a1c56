// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/attention/quantized_attention.h"
#include "ops/attention/rope.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_blocks.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "ops/gemm/matmul_truncating.h"
#include "ops/health/quant_stats.h"
#include "ops/health/tensor_sums.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/greedy_match.h"
#include "ops/norm/rms_norm.h"
#include "ops/quantize/amax_history.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_pair.h"
#include "ops/quantize/rotate.h"
#include "ops/quantize/swizzle_scales.h"
#include "ops/ssm/causal_conv.h"
#include "ops/ssm/ssd.h"

namespace nibble {

/// An op and the backends that have it.
struct OpInfo {
  std::string_view name;
  bool ref, cpu, cuda;
};

template <class... Args>
constexpr auto op_infos(const Op<Args>&... ops) {
  return std::array{OpInfo{ops.name, ops.ref != nullptr, ops.cpu != nullptr, ops.cuda != nullptr}...};
}

/// Every op there is. The conformance test fails when one of them is compared with its reference nowhere.
inline constexpr auto kAllOps = op_infos(
    matmul, matmul_fp8, matmul_fp4, matmul_mxfp8, matmul_truncating, matmul_blocks, rms_norm, add_rms_norm,
    rms_norm_backward, gated_rms_norm, gated_rms_norm_backward, add, cast, swiglu, swiglu_backward,
    squared_relu, squared_relu_backward, column_sum, embedding, embedding_backward, cross_entropy,
    greedy_match, gate_update, adamw, sum_squares, sum, rope, attention, attention_backward,
    quantized_attention, quantized_attention_backward, causal_conv, causal_conv_backward, ssd, ssd_backward,
    choose_amax, push_amax, quantize, quantize_pair, dequantize, rotate, swizzle_scales, measure_quant,
    measure_tensor, measure_difference, measure_logits);

}  // namespace nibble
