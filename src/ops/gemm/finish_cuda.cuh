// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"
#include "ops/gemm/gemm.h"

/// What follows the sum of a product, in MatMul's order, as kernels do it.
namespace nibble::cuda {

struct Finish {
  const float* a_scale;
  const float* b_scale;
  const float* a_row;  ///< a scale a row of a, or null
  const float* b_row;
  float inverse_range;
  const float* bias;
  void* c;
  std::int64_t c_stride;
  bool accumulate;
};

inline Finish finish_of(const MatMul& g) {
  return {.a_scale = g.a_scale,
          .b_scale = g.b_scale,
          .a_row = g.a_row_scale_M.data(),
          .b_row = g.b_row_scale_N.data(),
          .inverse_range = g.inverse_range,
          .bias = g.bias_N.data(),
          .c = g.c_MN.data(),
          .c_stride = g.c_MN.stride(0),
          .accumulate = g.beta != 0};
}

/// alpha for the scales of one row of either operand, where those are scaled by rows. Without them it is
/// alpha_of's, to the bit: 1 * a is a.
__device__ __forceinline__ float alpha_for(const Finish& f, float a_row, float b_row) {
  float a = f.a_scale != nullptr ? *f.a_scale : 1.0f, b = f.b_scale != nullptr ? *f.b_scale : 1.0f;
  if (f.a_row != nullptr) a = a * a_row;
  if (f.b_row != nullptr) b = b * b_row;
  return (a * b) * f.inverse_range;
}

/// What c becomes; `bias` is the column's and `before` what c was, where they count.
__device__ __forceinline__ float finished(const Finish& f, float alpha, float sum, float bias, float before) {
  float value = alpha * sum;
  if (f.bias != nullptr) value += bias;
  if (f.accumulate) value += before;
  return value;
}

/// c[m, n] from the finished sum.
template <class C>
__device__ __forceinline__ void finish(const Finish& f, std::int64_t m, std::int64_t n, float sum) {
  C* const out = static_cast<C*>(f.c) + m * f.c_stride + n;
  const float alpha =
      alpha_for(f, f.a_row != nullptr ? f.a_row[m] : 1.0f, f.b_row != nullptr ? f.b_row[n] : 1.0f);
  *out = from_float<C>(
      finished(f, alpha, sum, f.bias != nullptr ? f.bias[n] : 0.0f, f.accumulate ? to_float(*out) : 0.0f));
}

}  // namespace nibble::cuda
