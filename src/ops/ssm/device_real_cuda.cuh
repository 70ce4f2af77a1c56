// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/kernel.cuh"
#include "tensor/view.h"

/// Views as kernels see them: a pointer, the storage type and the strides in elements. The general paths of
/// the family read through these, whatever mixture of types and strides a caller has.
namespace nibble::cuda {

/// Two or three axes of F32 or BF16 numbers; the last of three is contiguous.
template <bool kConst>
struct DeviceReal {
  using Void = std::conditional_t<kConst, const void, void>;
  Void* data;
  bool is_bf16;
  std::int64_t stride0, stride1;

  explicit DeviceReal(const BasicRealView<kConst>& v)
      : data(v.data()), is_bf16(v.dtype() == DType::BF16), stride0(v.stride(0)), stride1(v.stride(1)) {}

  __device__ float get(std::int64_t i, std::int64_t j, std::int64_t k = 0) const {
    const std::int64_t at = i * stride0 + j * stride1 + k;
    return is_bf16 ? static_cast<const bf16*>(data)[at].value() : static_cast<const float*>(data)[at];
  }
  __device__ void set(float value, std::int64_t i, std::int64_t j, std::int64_t k = 0) const
      requires(!kConst) {
    const std::int64_t at = i * stride0 + j * stride1 + k;
    if (is_bf16)
      static_cast<bf16*>(data)[at] = bf16::nearest(value);
    else
      static_cast<float*>(data)[at] = value;
  }
};

using DeviceIn = DeviceReal<true>;
using DeviceOut = DeviceReal<false>;

/// One or two axes of FP32 numbers with strides; data may be null where the op allows it.
template <class T>
struct DeviceFloats {
  T* data;
  std::int64_t stride0, stride1;

  explicit DeviceFloats(const View<T>& v)
      : data(v.data()), stride0(v.empty() ? 0 : v.stride(0)), stride1(v.rank() > 1 ? v.stride(1) : 0) {}
  __device__ T& operator()(std::int64_t i, std::int64_t j = 0) const {
    return data[i * stride0 + j * stride1];
  }
};

}  // namespace nibble::cuda
