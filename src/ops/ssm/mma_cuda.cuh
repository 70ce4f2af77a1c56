// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/cuda/kernel.cuh"

/// The instructions behind products of small BF16 matrices with FP32 sums (mma.sync.m16n8k16) and copies from
/// global to shared memory that the threads do not wait for. Lane l of a warp is called (g, q) = (l / 4, l %
/// 4).
///
/// A fragment holds rows g and g + 8, columns 2q, 2q + 1 and 2q + 8, 2q + 9 of a 16 x 16 matrix; a sum holds
/// rows g (elements 0, 1) and g + 8 (elements 2, 3), columns 2q and 2q + 1, of a 16 x 8 matrix. So two
/// neighbouring sums, rounded and packed, are a left operand. [PTX] in docs/SOURCES.md.
namespace nibble::cuda {

/// The block's dynamic shared memory.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Sixteen bytes to shared memory, zeros where not `valid` (then `from` is not read).
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kLeft of this thread's groups are under way; a barrier must follow.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// Two numbers rounded to nearest even, the first in the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/// Four 8 x 8 matrices, their rows at the addresses of lanes 0-7, 8-15, 16-23, 24-31.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_turned(std::uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// sum += a b, 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace nibble::cuda
