// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/cuda/cuda_device.h"
#include "numeric/bf16.h"

/// What kernels share: launching, sums over warps and blocks in a fixed order, 16-byte loads and stores.
/// Device code only; files `*_cuda.cu` include it.
namespace nibble::cuda {

inline constexpr int kWarp = 32;

/// Launches `kernel` on the stream's GPU and checks that the launch was accepted. `what` is the op's name.
template <class... Params, class... Args>
void launch(Stream& stream, std::string_view what, void (*kernel)(Params...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               what);
  kernel<<<grid, block, shared_bytes, cuda_device(stream).stream()>>>(
      static_cast<Params>(std::forward<Args>(args))...);
  cuda_check(cudaGetLastError(), what);
}

/// Blocks of `per_block` that cover n.
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

/// Two numbers as BF16 in one word, `low` in the lower half: the bits of bf16::nearest.
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  // The instruction has another NaN than bf16, without the sign.
  if (low != low || high != high)
    bits = bf16::nearest(low).bits | static_cast<std::uint32_t>(bf16::nearest(high).bits) << 16;
  return bits;
}

/// N numbers in the fewest 16-byte (or smaller) accesses; the address is aligned to their size.
template <class T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ void load_pack(const T* p, float (&out)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(p);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = to_float(pack.v[i]);
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const float (&in)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    Pack<std::uint32_t, N / 2> words;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) words.v[i] = bf16_pair(in[2 * i], in[2 * i + 1]);
    *reinterpret_cast<Pack<std::uint32_t, N / 2>*>(p) = words;
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = from_float<T>(in[i]);
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
  }
}
/// Whether rows of this stride that start at p can be read in packs of N.
template <int N, class T>
bool packs_fit(const T* p, std::int64_t row_stride) {
  const std::size_t bytes = sizeof(Pack<T, N>) < 16 ? sizeof(Pack<T, N>) : 16;
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0 &&
         (row_stride * static_cast<std::int64_t>(sizeof(T))) % static_cast<std::int64_t>(bytes) == 0;
}

/// The same sum on every lane, always added in the same order.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}
/// Over a block of kThreads: the same sum on every thread. Needs all threads; ends with a barrier.
template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T x) {
  __shared__ T parts[kThreads / kWarp];
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}
template <int kThreads>
__device__ __forceinline__ float block_max(float x) {
  __shared__ float parts[kThreads / kWarp];
  x = warp_max(x);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  float most = parts[0];
#pragma unroll
  for (int i = 1; i < kThreads / kWarp; ++i) most = fmaxf(most, parts[i]);
  __syncthreads();
  return most;
}

}  // namespace nibble::cuda
