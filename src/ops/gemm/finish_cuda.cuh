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

/// Without scales a row this alpha is alpha_of's, to the bit: 1 * a is a.
__device__ __forceinline__ float alpha_at(const Finish& f, std::int64_t m, std::int64_t n) {
  float a = f.a_scale != nullptr ? *f.a_scale : 1.0f, b = f.b_scale != nullptr ? *f.b_scale : 1.0f;
  if (f.a_row != nullptr) a = a * f.a_row[m];
  if (f.b_row != nullptr) b = b * f.b_row[n];
  return (a * b) * f.inverse_range;
}

/// c[m, n] from the finished sum.
template <class C>
__device__ __forceinline__ void finish(const Finish& f, std::int64_t m, std::int64_t n, float sum) {
  C* const out = static_cast<C*>(f.c) + m * f.c_stride + n;
  float value = alpha_at(f, m, n) * sum;
  if (f.bias != nullptr) value += f.bias[n];
  if (f.accumulate) value += to_float(*out);
  *out = from_float<C>(value);
}

}  // namespace nibble::cuda
