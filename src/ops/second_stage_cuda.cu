// SPDX-License-Identifier: Apache-2.0
#include "ops/second_stage.h"

#include "backend/cuda/kernel.cuh"

namespace nibble::cuda {
namespace {

constexpr int kColumns = 32, kLanes = 32;

/// Lane y adds rows y, y + 32, ...; then the lanes are added in order.
__global__ void __launch_bounds__(kColumns* kLanes)
    column_partials_kernel(const float* partial, std::int64_t rows, std::int64_t columns,
                           std::int64_t row_stride, float* out) {
  __shared__ double sums[kLanes][kColumns];
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  double sum = 0;
  if (c < columns) {
#pragma unroll 8
    for (std::int64_t r = threadIdx.y; r < rows; r += kLanes) sum += partial[r * row_stride + c];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
  double total = 0;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) total += sums[lane][threadIdx.x];
  out[c] = static_cast<float>(out[c] + total);
}

constexpr int kAmaxThreads = 1024;

__global__ void __launch_bounds__(kAmaxThreads)
    amax_kernel(const std::uint32_t* partial, std::int64_t count, bool to_bf16, float* amax) {
  __shared__ std::uint32_t parts[kAmaxThreads / kWarp];
  std::uint32_t most = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kAmaxThreads) most = max(most, partial[i]);
  most = __reduce_max_sync(0xFFFFFFFFu, most);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  most = __reduce_max_sync(0xFFFFFFFFu, parts[threadIdx.x]);
  if (threadIdx.x != 0) return;
  const float largest = bits_float(most);
  *amax = to_bf16 ? bf16::nearest(largest).value() : largest;
}

}  // namespace

void add_column_partials(Stream& stream, std::string_view op, View<const float> partial_RC,
                         View<float> out_C) {
  const std::int64_t columns = partial_RC.size(1);
  launch(stream, op, column_partials_kernel, dim3(blocks_for(columns, kColumns)), dim3(kColumns, kLanes), 0,
         partial_RC.data(), partial_RC.size(0), columns, partial_RC.stride(0), out_C.data());
}

void finish_amax(Stream& stream, std::string_view op, View<const std::uint32_t> partial_R, bool to_bf16,
                 float* amax) {
  launch(stream, op, amax_kernel, dim3(1), dim3(kAmaxThreads), 0, partial_R.data(), partial_R.size(0),
         to_bf16, amax);
}

}  // namespace nibble::cuda
