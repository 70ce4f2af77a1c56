// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_kernels_cuda.h"

#include "backend/cuda/kernel.cuh"
#include "ops/gemm/alpha.h"

namespace nibble::cuda {
namespace {

__global__ void alpha_kernel(const float* a_scale, const float* b_scale, float inverse_range, float* alpha) {
  *alpha = alpha_of(a_scale, b_scale, inverse_range);
}

/// Reads 4 M N bytes and writes 2 M N. Only products with a bias into BF16 come here.
__global__ void round_kernel(const float* wide, std::int64_t rows, std::int64_t cols, bf16* c,
                             std::int64_t stride) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * cols) return;
  c[i / cols * stride + i % cols] = bf16::nearest(wide[i]);
}

}  // namespace

void write_alpha(Stream& stream, const float* a_scale, const float* b_scale, float inverse_range,
                 float* alpha) {
  launch(stream, "matmul: alpha", alpha_kernel, 1, 1, 0, a_scale, b_scale, inverse_range, alpha);
}

void round_result(Stream& stream, const View<const float>& wide, const View<bf16>& c_MN) {
  constexpr int kThreads = 256;
  launch(stream, "matmul: rounding the result", round_kernel, blocks_for(wide.numel(), kThreads), kThreads, 0,
         wide.data(), wide.size(0), wide.size(1), c_MN.data(), c_MN.stride(0));
}

}  // namespace nibble::cuda
