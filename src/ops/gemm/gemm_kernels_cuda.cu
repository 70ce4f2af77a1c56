// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_kernels_cuda.h"

#include "ops/gemm/alpha.h"
#include "ops/gemm/finish_cuda.cuh"

namespace nibble::cuda {
namespace {

__global__ void alpha_kernel(const float* a_scale, const float* b_scale, float inverse_range, float* alpha) {
  *alpha = alpha_of(a_scale, b_scale, inverse_range);
}

/// Moves 4 M N bytes of sums and c once, 6 M N for a BF16 result. Only products with a bias into BF16 or with
/// scales a row come here.
template <class C>
__global__ void finish_kernel(const float* sums, std::int64_t rows, std::int64_t cols, const Finish f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < rows * cols) finish<C>(f, i / cols, i % cols, sums[i]);
}

}  // namespace

void write_alpha(Stream& stream, const float* a_scale, const float* b_scale, float inverse_range,
                 float* alpha) {
  launch(stream, "matmul: alpha", alpha_kernel, 1, 1, 0, a_scale, b_scale, inverse_range, alpha);
}

void finish_product(Stream& stream, const MatMul& g, const View<const float>& sums_MN) {
  constexpr int kThreads = 256;
  auto* const kernel = g.c_MN.dtype() == DType::BF16 ? finish_kernel<bf16> : finish_kernel<float>;
  launch(stream, "matmul: finishing", kernel, blocks_for(sums_MN.numel(), kThreads), kThreads, 0,
         sums_MN.data(), sums_MN.size(0), sums_MN.size(1), finish_of(g));
}

}  // namespace nibble::cuda
