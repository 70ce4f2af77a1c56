// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/finish_cuda.cuh"
#include "ops/gemm/truncating_finish.h"
#include "ops/gemm/truncating_row.h"

namespace nibble::cuda {
namespace {

struct Operand {
  const std::uint8_t *codes, *scales;
  std::int64_t code_stride, scale_stride;
  __device__ CodedRow row(std::int64_t r) const {
    return {codes + r * code_stride, scales + r * scale_stride};
  }
};

/// A thread an element; integers throughout.
template <class C>
__global__ void truncating_kernel(Operand a, Operand b, std::int64_t M, std::int64_t N, std::int64_t bytes,
                                  bool nvfp4, Finish f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= M * N) return;
  finish<C>(f, i / N, i % N, truncating_sum(nvfp4, a.row(i / N), b.row(i % N), bytes));
}

}  // namespace

void run(Stream& stream, const MatMulTruncating& g) {
  constexpr int kThreads = 128;
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1);
  const auto operand = [](const View<const std::uint8_t>& codes, const View<const std::uint8_t>& scales) {
    return Operand{codes.data(), scales.data(), codes.stride(0), scales.stride(0)};
  };
  auto* const kernel = g.c_MN.dtype() == DType::BF16 ? truncating_kernel<bf16> : truncating_kernel<float>;
  launch(stream, "matmul_truncating", kernel, blocks_for(M * N, kThreads), kThreads, 0,
         operand(g.a_codes, g.a_scales), operand(g.b_codes, g.b_scales), M, N, g.a_codes.size(1),
         g.format == Format::Nvfp4, finish_of(nibble::finish_of(g)));
}

}  // namespace nibble::cuda
