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

/// More dynamic shared memory than the 48 KB that every kernel may have must be asked for.
template <class... Params>
void allow_shared_bytes(std::string_view what, void (*kernel)(Params...), std::size_t shared_bytes) {
  if (shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               what);
}

/// Launches `kernel` on the stream's GPU and checks that the launch was accepted. `what` is the op's name.
template <class... Params, class... Args>
void launch(Stream& stream, std::string_view what, void (*kernel)(Params...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  allow_shared_bytes(what, kernel, shared_bytes);
  kernel<<<grid, block, shared_bytes, cuda_device(stream).stream()>>>(
      static_cast<Params>(std::forward<Args>(args))...);
  cuda_check(cudaGetLastError(), what);
}

/// Blocks of `per_block` that cover n.
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

/// Two numbers as BF16 in one word, `low` in the lower half. For NaN another than bf16::nearest gives.
__device__ __forceinline__ std::uint32_t bf16_pair_of_numbers(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
/// N numbers as BF16, the first in the lower half of the first word: the bits of bf16::nearest.
template <int N>
__device__ __forceinline__ void bf16_words(const float (&in)[N], std::uint32_t (&words)[N / 2]) {
  static_assert(N % 2 == 0);
  bool nan = false;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    words[i / 2] = bf16_pair_of_numbers(in[i], in[i + 1]);
    nan = nan || !(in[i] < in[i + 1] || in[i] >= in[i + 1]);  // one comparison a pair
  }
  if (!nan) return;
#pragma unroll
  for (int i = 0; i < N; i += 2)
    words[i / 2] = bf16::nearest(in[i]).bits | static_cast<std::uint32_t>(bf16::nearest(in[i + 1]).bits)
                                                   << 16;
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
/// Whole words to global memory in stores of 16 or 8 bytes, to whose size `p` is aligned. Written out: the
/// compiler stores some of several packs word by word.
template <int N>
__device__ __forceinline__ void store_words(void* p, const std::uint32_t (&words)[N]) {
  const std::size_t to = __cvta_generic_to_global(p);
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + 4 * i), "r"(words[i]),
                   "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
  } else {
    static_assert(N == 2);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1]) : "memory");
  }
}
/// `p` is in global memory.
template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const float (&in)[N]) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T));
  if constexpr (kBytes % 8 == 0) {
    std::uint32_t words[kBytes / 4];
    if constexpr (sizeof(T) == 2) {
      bf16_words(in, words);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = float_bits(in[i]);
    }
    store_words(p, words);
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
