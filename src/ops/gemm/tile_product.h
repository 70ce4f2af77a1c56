// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "numeric/bf16.h"

namespace nibble::cpu {

/// c[m,n] = sum over k of a[m,k] b[n,k] in FP32 for one tile, on the calling thread alone (oneDNN [oneDNN]).
/// Strides are in elements; of each operand's two strides one is 1.
///
/// The accumulation is FP32; its order depends on the shape and the processor, not on other threads. With
/// hardware BF16, subnormal operands and results count as zero, as the instruction defines it: an error below
/// K 2^-126.
struct TileProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  bool bf16_operands = false;  ///< else FP32
  std::int64_t a_stride_m = 0, a_stride_k = 0, b_stride_n = 0, b_stride_k = 0;
  float* c = nullptr;
  std::int64_t c_stride_m = 0;
};

/// Throws Error{Runtime} when oneDNN refuses.
void multiply(const TileProduct& tile);

}  // namespace nibble::cpu
