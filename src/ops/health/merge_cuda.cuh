// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"

/// Sums that have merge(), put together over the threads of a block and then over blocks, always in the same
/// order: the same bits twice, on any GPU. Device code only.
namespace nibble::cuda {

inline constexpr int kMergeThreads = 256;

/// The parts of all threads as one, valid on thread 0. Needs all kMergeThreads threads.
template <class Sums>
__device__ Sums block_merge(const Sums& mine) {
  __shared__ alignas(16) unsigned char memory[kMergeThreads * sizeof(Sums)];
  Sums* parts = reinterpret_cast<Sums*>(memory);
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kMergeThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x].merge(parts[threadIdx.x + half]);
    __syncthreads();
  }
  return parts[0];
}

/// One block: merges `count` parts into *out.
template <class Sums>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const Sums* parts, std::int64_t count, Sums* out) {
  Sums mine;
  for (std::int64_t i = threadIdx.x; i < count; i += kMergeThreads) mine.merge(parts[i]);
  const Sums all = block_merge(mine);
  if (threadIdx.x == 0) out->merge(all);
}

}  // namespace nibble::cuda
