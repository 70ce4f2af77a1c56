// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"
#include "ops/quantize/quantize_cuda.h"
#include "quant/amax.h"
#include "quant/fp8_tensor.h"
#include "quant/hadamard.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"
#include "quant/operand.h"

/// The result matrix on the device before it is quantised, block by block, and where its quantised form goes:
/// the same steps as the host's (quantize_blocks.cpp) on raw pointers. Device code only.
namespace nibble::cuda {

/// What MatMul takes as the operand's scale (Quantize::scale).
__device__ __forceinline__ float operand_scale(const Publish& p, float amax) {
  const float for_infinity = p.bf16_values ? kBf16Max : kFloatMax;
  switch (p.spec.format) {
    case Format::Nvfp4:
      if (p.spec.tensor_scaling == TensorScaling::Row) return 1.0f;
      return counted_amax(p.spec, amax) * (448.0f / static_cast<float>(p.spec.scale_bound));
    case Format::Mxfp4:
      return mxfp4_tensor_factor(p.spec.scale_rule);
    case Format::Fp8E4M3:
      return Fp8Scale::from_amax<E4M3>(amax, for_infinity).decode;
    case Format::Fp8E5M2:
      return Fp8Scale::from_amax<E5M2>(amax, for_infinity).decode;
    default:
      return 1.0f;
  }
}

/// By one thread.
__device__ __forceinline__ void publish(const Publish& p, float amax) {
  if (p.amax == nullptr) return;
  note_fault(p.spec.non_finite, amax, p.fault, p.fault_id);
  *p.scale = operand_scale(p, amax);
  *p.amax = amax;
}

/// What every quantising kernel does first: the tensor's amax, and a given one is published.
__device__ __forceinline__ float begin(const QuantizeJob& job) {
  const float amax = *job.amax;
  if (job.given && blockIdx.x == 0 && threadIdx.x == 0) publish(job.publish, amax);
  return amax;
}

/// T: what the source stores, float or bf16.
template <class T>
struct DeviceMatrix {
  const QuantizeJob& job;
  RandomKey key;

  __device__ explicit DeviceMatrix(const QuantizeJob& j) : job(j), key(j.random.resolved()) {}

  /// N values from column j of row i of the result, padded with zeros, rotated where the spec says so; j is a
  /// multiple of N, N of 16.
  template <int N>
  __device__ __forceinline__ void load(std::int64_t i, std::int64_t j, float (&x)[N]) const {
    const T* p = static_cast<const T*>(job.x);
    const std::int64_t filled = job.transpose ? job.x_rows : job.x_cols;
    const std::int64_t step = job.transpose ? job.x_stride : 1;
    p += job.transpose ? j * job.x_stride + i : i * job.x_stride + j;
    if (sizeof(T) == 2 && job.wide_x && !job.transpose && j + N <= filled) {
#pragma unroll
      for (int k = 0; k < N; k += 8) {
        float part[8];
        load_pack<8>(p + k, part);
#pragma unroll
        for (int m = 0; m < 8; ++m) x[k + m] = part[m];
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] = j + k < filled ? nibble::to_float(p[k * step]) : 0.0f;
    }
    if (job.spec.rotation == 0) return;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      float part[16];
#pragma unroll
      for (int m = 0; m < 16; ++m) part[m] = x[k + m];
      rotate_block(part, job.spec.sign_mask);
#pragma unroll
      for (int m = 0; m < 16; ++m) x[k + m] = part[m];
    }
  }

  /// Which element of the global batch lies at (i, j) of the result, from the tensor's first one.
  __device__ __forceinline__ std::uint64_t element(std::int64_t i, std::int64_t j) const {
    return static_cast<std::uint64_t>(job.transpose ? j * job.row_elements + i : i * job.row_elements + j);
  }

  /// Calls f with the rounder of the N values from column j of row i.
  template <int N, class F>
  __device__ __forceinline__ void with_rounder(std::int64_t i, std::int64_t j, F f) const {
    switch (job.spec.rounding) {
      case Rounding::NearestEven:
        return f(NearestEven{});
      case Rounding::NearestAway:
        return f(NearestAway{});
      case Rounding::Stochastic: {
        if (job.spec.random_bits != 8) {
          StochasticBits<N> round;
          round.bits = job.spec.random_bits;
          for (int k = 0; k < N; ++k) round.random[k] = random_bits24(key, element(i, j + k));
          return f(round);
        }
        Stochastic<N> round;
        for (int k = 0; k < N; ++k) round.random[k] = random_byte(key, element(i, j + k));
        return f(round);
      }
      case Rounding::StochasticExact: {
        StochasticExact<N> round;
        for (int k = 0; k < N; ++k) round.random[k] = random_bits24(key, element(i, j + k));
        return f(round);
      }
    }
  }

  /// Writes N packed four-bit codes and their scale.
  template <int N, class Scale>
  __device__ __forceinline__ void put(std::int64_t i, std::int64_t j, const std::uint8_t (&codes)[N / 2],
                                      Scale scale) const {
    if (job.values) {
      bf16 values[N];
#pragma unroll
      for (int k = 0; k < N; ++k) values[k] = exact_operand(unpack_code(codes, k), scale);
      put_row(job.values + i * job.values_stride + j, job.wide_values, job.cols - j, values);
    }
    if (job.codes)
      put_row(job.codes + i * job.codes_stride + j / 2, job.wide_codes, (job.cols - j + 1) / 2, codes);
    if (job.scales) job.scales[i * job.scales_stride + j / N] = scale.bits;
  }

  /// N codes that have a byte each, with their operands.
  template <int N>
  __device__ __forceinline__ void put_bytes(std::int64_t i, std::int64_t j, const std::uint8_t (&codes)[N],
                                            const bf16 (&values)[N]) const {
    if (job.values) put_row(job.values + i * job.values_stride + j, job.wide_values, job.cols - j, values);
    if (job.codes) put_row(job.codes + i * job.codes_stride + j, job.wide_codes, job.cols - j, codes);
  }

  /// What of N numbers is in the row, of which `left` are left; 8 or 16 bytes at a time where `wide` says
  /// that rows begin so, because neighbouring threads write far apart where the matrix is transposed.
  template <class U, int N>
  __device__ static __forceinline__ void put_row(U* out, bool wide, std::int64_t left, const U (&in)[N]) {
    constexpr int kBytes = N * sizeof(U) < 16 ? N * sizeof(U) : 16, kPack = kBytes / sizeof(U);
    if (wide && left >= N) {
#pragma unroll
      for (int k = 0; k < N; k += kPack) {
        Pack<U, kPack> pack;
#pragma unroll
        for (int m = 0; m < kPack; ++m) pack.v[m] = in[k + m];
        *reinterpret_cast<Pack<U, kPack>*>(out + k) = pack;
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k < left) out[k] = in[k];
    }
  }
};

/// Calls f(T{}) with the type that the source stores.
template <class F>
void with_source(const QuantizeJob& job, F&& f) {
  if (job.x_is_f32)
    f(float{});
  else
    f(bf16{});
}

}  // namespace nibble::cuda
