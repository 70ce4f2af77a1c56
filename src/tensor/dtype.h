// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "numeric/bf16.h"

namespace nibble {

/// How numbers are stored, with the names that safetensors gives them.
enum class DType : std::uint8_t {
  F32,
  BF16,
  F16,
  F64,
  U8,
  I8,
  I16,
  I32,
  I64,
  U16,
  U32,
  U64,
  F8E4M3,
  F8E5M2,
  F8E8M0,
  Bool
};

std::size_t size_of(DType dtype);
std::string_view name_of(DType dtype);
/// Throws Error{Runtime} for a name that safetensors does not have or that nibble does not read.
DType dtype_from_name(std::string_view name);

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::BF16;
};

}  // namespace nibble
