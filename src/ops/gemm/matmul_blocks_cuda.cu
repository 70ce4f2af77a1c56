// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/cuda/kernel.cuh"
#include "ops/gemm/gemm_kernels_cuda.h"
#include "ops/gemm/matmul_blocks.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

/// sums (+)= the block's product, scaled. Moves 12 M N bytes a block beside the product's own.
__global__ void __launch_bounds__(kThreads)
    scaled_add_kernel(const float* part, float* sums, std::int64_t M, std::int64_t N, const float* a_scale,
                      std::int64_t a_stride, const float* b_scale, std::int64_t b_stride, bool first) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= M * N) return;
  const float before = first ? 0.0f : sums[i];
  sums[i] = before + (a_scale[i / N * a_stride] * b_scale[i % N * b_stride]) * part[i];
}

}  // namespace

void run(Stream& stream, const MatMulBlocks& g) {
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1), K = g.a_MK.size(1);
  if (M == 0 || N == 0) return;
  const ArenaScope scope(stream.scratch());
  const View<float> part = stream.scratch().take<float>(M, N), sums = stream.scratch().take<float>(M, N);
  for (std::int64_t first = 0, i = 0; first < K; first += kScaledBlock, ++i) {
    const std::int64_t count = std::min(kScaledBlock, K - first);
    run(stream,
        MatMul{.a_MK = g.a_MK.slice(1, first, count), .b_NK = g.b_NK.slice(1, first, count), .c_MN = part});
    launch(stream, "matmul_blocks", scaled_add_kernel, blocks_for(M * N, kThreads), kThreads, 0, part.data(),
           sums.data(), M, N, g.a_scale_MI.data() + i, g.a_scale_MI.stride(0), g.b_scale_NI.data() + i,
           g.b_scale_NI.stride(0), i == 0);
  }
  finish_product(stream, {.c_MN = g.c_MN, .inverse_range = g.factor, .beta = g.beta, .bias_N = g.bias_N},
                 sums);
}

}  // namespace nibble::cuda
