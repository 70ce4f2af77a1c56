// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"
#include "tensor/view.h"

/// What kernels over the rows of matrices share.
namespace nibble::cuda {

/// A matrix of either storage type, decided at run time: for the paths that take whatever an op's check
/// accepts. Neighbouring threads should ask for neighbouring columns.
struct AnyRows {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool is_bf16 = false;

  AnyRows() = default;
  AnyRows(const ConstRealView& v)
      : data(const_cast<void*>(v.data())), stride(v.stride(0)), is_bf16(v.dtype() == DType::BF16) {}
  AnyRows(const RealView& v) : AnyRows(ConstRealView(v)) {}

  NIBBLE_HD bool empty() const { return data == nullptr; }
  __device__ __forceinline__ float get(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * stride + column;
    return is_bf16 ? static_cast<const bf16*>(data)[at].value() : static_cast<const float*>(data)[at];
  }
  __device__ __forceinline__ void set(std::int64_t row, std::int64_t column, float value) const {
    const std::int64_t at = row * stride + column;
    if (is_bf16)
      static_cast<bf16*>(data)[at] = bf16::nearest(value);
    else
      static_cast<float*>(data)[at] = value;
  }
  template <class T>
  __device__ __forceinline__ T* at(std::int64_t row, std::int64_t column) const {
    return static_cast<T*>(data) + row * stride + column;
  }
};

/// Whether every row of v, and every `part` columns from its start, can be read in packs of N.
template <int N, class AnyView>
bool in_packs(const AnyView& v, std::int64_t part) {
  const std::int64_t size = static_cast<std::int64_t>(size_of(v.dtype()));
  const std::int64_t bytes = N * size < 16 ? N * size : 16;
  return part % N == 0 &&
         reinterpret_cast<std::uintptr_t>(v.data()) % static_cast<std::uintptr_t>(bytes) == 0 &&
         (v.size(0) <= 1 || v.stride(0) * size % bytes == 0);
}

inline bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// Numbers as the type T holds them.
template <class T, int N>
__device__ __forceinline__ void round_to(float (&v)[N]) {
  if constexpr (sizeof(T) == 2) {
    std::uint32_t words[N / 2];
    bf16_words(v, words);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      v[i] = bits_float(words[i / 2] << 16);
      v[i + 1] = bits_float(words[i / 2] & 0xFFFF0000u);
    }
  }
}

/// N numbers as they are stored: a row that waits in registers costs half as many in BF16. Words and not
/// numbers of 16 bits, which the compiler would spread over whole registers.
template <class T, int N>
struct Stored {
  static constexpr bool kPairs = sizeof(T) == 2 && N % 2 == 0;
  using Word = std::conditional_t<kPairs, std::uint32_t, T>;
  Pack<Word, kPairs ? N / 2 : N> pack;

  __device__ __forceinline__ void load(const T* p) { pack = *reinterpret_cast<const decltype(pack)*>(p); }
  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (kPairs)
      return bits_float(i % 2 == 0 ? pack.v[i / 2] << 16 : pack.v[i / 2] & 0xFFFF0000u);
    else
      return to_float(pack.v[i]);
  }
  /// What was computed from the numbers so far is computed again where it is used next: it does not wait in
  /// registers beside them.
  __device__ __forceinline__ void forget_derived() {
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) asm volatile("" : "+r"(pack.v[i]));
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) asm volatile("" : "+f"(pack.v[i]));
    }
  }
};

/// Elements in the widest access that two types share: both then lie contiguously over a warp.
template <class A, class B>
inline constexpr int kPackOf = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

/// Leaves a block's largest magnitude bits at `place`, which belongs to this block. Needs all threads.
template <int kThreads>
__device__ __forceinline__ void leave_amax(std::uint32_t bits, std::uint32_t* place) {
  __shared__ std::uint32_t parts[kThreads / kWarp];
  bits = __reduce_max_sync(0xFFFFFFFFu, bits);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = bits;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < kThreads / kWarp; ++i) bits = max(bits, parts[i]);
  *place = bits;
}

/// T: what the result is rounded to. FP32 keeps the accuracy of expf and a rounded division, about 20
/// instructions. BF16 takes the hardware's exponential and reciprocal, four instructions, with a relative
/// error of 2^-22 + |x| 2^-24: below 2^-20 wherever the sigmoid is not yet negligible.
template <class T = float>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-x));
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return inverse;
}

}  // namespace nibble::cuda
