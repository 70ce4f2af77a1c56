// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/finish_cuda.cuh"
#include "ops/gemm/gemm_kernels_cuda.h"

namespace nibble::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kEach = 4;
/// Room behind a row of a tile, so that storing down a column does not meet one bank; rows stay 16-byte
/// aligned.
constexpr int kRow = kTile + 4;

struct Operand {
  const void* data;
  std::int64_t rows, row_stride, k_stride;
};

struct Product {
  Operand a, b;
  std::int64_t K, tiles_n;
  Finish finish;
};

/// Rows first..first+63 and k..k+15 of an operand into shared memory as FP32, zeros outside. Neighbouring
/// threads follow the axis that lies contiguous.
template <class T>
__device__ void load_tile(const Operand& x, std::int64_t K, std::int64_t first, std::int64_t k,
                          float (&tile)[kDepth][kRow]) {
  const bool k_fastest = x.k_stride == 1;
#pragma unroll
  for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = k_fastest ? at / kDepth : at % kTile;
    const int depth = k_fastest ? at % kDepth : at / kTile;
    float value = 0;
    if (first + row < x.rows && k + depth < K)
      value =
          to_float(static_cast<const T*>(x.data)[(first + row) * x.row_stride + (k + depth) * x.k_stride]);
    tile[depth][row] = value;
  }
}

/// A block computes 64 x 64 results, a thread 4 x 4 of them. Bound by FP32 arithmetic: 2 M N K operations at
/// perhaps a third of the card's FP32 rate, a hundredth of its BF16 tensor cores. Only what the library
/// refuses comes here.
template <class T, class C>
__global__ void __launch_bounds__(kThreads) product_kernel(const Product p) {
  __shared__ __align__(16) float a[kDepth][kRow];
  __shared__ __align__(16) float b[kDepth][kRow];
  const std::int64_t first_m = blockIdx.x / p.tiles_n * kTile, first_n = blockIdx.x % p.tiles_n * kTile;
  const int row = static_cast<int>(threadIdx.x) / (kTile / kEach) * kEach;
  const int col = static_cast<int>(threadIdx.x) % (kTile / kEach) * kEach;
  float sum[kEach][kEach] = {};
  for (std::int64_t k = 0; k < p.K; k += kDepth) {
    load_tile<T>(p.a, p.K, first_m, k, a);
    load_tile<T>(p.b, p.K, first_n, k, b);
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      const float4 x = *reinterpret_cast<const float4*>(&a[depth][row]);
      const float4 y = *reinterpret_cast<const float4*>(&b[depth][col]);
      const float xs[kEach] = {x.x, x.y, x.z, x.w}, ys[kEach] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sum[i][j] = fmaf(xs[i], ys[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t m = first_m + row + i, n = first_n + col + j;
      if (m < p.a.rows && n < p.b.rows) finish<C>(p.finish, m, n, sum[i][j]);
    }
}

template <class T, class C>
void issue(Stream& stream, const Product& p) {
  launch(stream, "matmul", product_kernel<T, C>,
         blocks_for(p.a.rows, kTile) * static_cast<unsigned>(p.tiles_n), kThreads, 0, p);
}

}  // namespace

void multiply_directly(Stream& stream, const MatMul& g) {
  const auto operand = [](const ConstRealView& x) {
    return Operand{x.data(), x.size(0), x.stride(0), x.stride(1)};
  };
  const Product p{.a = operand(g.a_MK),
                  .b = operand(g.b_NK),
                  .K = g.a_MK.size(1),
                  .tiles_n = blocks_for(g.b_NK.size(0), kTile),
                  .finish = finish_of(g)};
  const bool half_operands = g.a_MK.dtype() == DType::BF16, half_result = g.c_MN.dtype() == DType::BF16;
  if (half_operands)
    half_result ? issue<bf16, bf16>(stream, p) : issue<bf16, float>(stream, p);
  else
    half_result ? issue<float, bf16>(stream, p) : issue<float, float>(stream, p);
}

}  // namespace nibble::cuda
