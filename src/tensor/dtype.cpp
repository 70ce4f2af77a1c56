// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include "base/error.h"

namespace nibble {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr Row kRows[] = {
    {DType::F32, "F32", 4},        {DType::BF16, "BF16", 2},      {DType::F16, "F16", 2},
    {DType::F64, "F64", 8},        {DType::U8, "U8", 1},          {DType::I8, "I8", 1},
    {DType::I16, "I16", 2},        {DType::I32, "I32", 4},        {DType::I64, "I64", 8},
    {DType::U16, "U16", 2},        {DType::U32, "U32", 4},        {DType::U64, "U64", 8},
    {DType::F8E4M3, "F8_E4M3", 1}, {DType::F8E5M2, "F8_E5M2", 1}, {DType::F8E8M0, "F8_E8M0", 1},
    {DType::Bool, "BOOL", 1},
};

}  // namespace

std::size_t size_of(DType dtype) { return kRows[static_cast<int>(dtype)].size; }
std::string_view name_of(DType dtype) { return kRows[static_cast<int>(dtype)].name; }

DType dtype_from_name(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name) return r.dtype;
  fail("dtype \"{}\" is not one that nibble reads", name);
}

}  // namespace nibble
