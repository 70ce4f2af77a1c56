// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm.h"

#include "ops/expect.h"

namespace nibble {
namespace {

void expect_operand(std::string_view name, const ConstRealView& x) {
  check(x.rank() == 2, "matmul: operand {} has {} axes, but needs 2", name, x.rank());
  check(x.stride(0) == 1 || x.stride(1) == 1 || x.size(0) <= 1 || x.size(1) <= 1,
        "matmul: operand {} has strides {} and {}, but one of them must be 1; copy it first", name,
        x.stride(0), x.stride(1));
}

}  // namespace

void check(const MatMul& g) {
  expect_operand("a", g.a_MK);
  expect_operand("b", g.b_NK);
  nibble::check(g.a_MK.dtype() == g.b_NK.dtype(), "matmul: operand a is {} but b is {}; cast one of them",
                name_of(g.a_MK.dtype()), name_of(g.b_NK.dtype()));
  nibble::check(g.a_MK.size(1) == g.b_NK.size(1),
                "matmul: operands reduce over {} and {} elements, but must agree", g.a_MK.size(1),
                g.b_NK.size(1));
  expect_rows("matmul", "c", g.c_MN.layout(), {g.a_MK.size(0), g.b_NK.size(0)});
  nibble::check(g.a_MK.size(1) >= 1, "matmul: there is nothing to sum: K is 0");
  nibble::check(g.beta == 0 || g.beta == 1, "matmul: beta is {}, but must be 0 or 1", g.beta);
  nibble::check(g.beta == 0 || g.c_MN.dtype() == DType::F32,
                "matmul: accumulating (beta = 1) needs an FP32 result, but c is {}", name_of(g.c_MN.dtype()));
  if (!g.bias_N.empty()) expect_rows("matmul", "bias", g.bias_N.layout(), {g.b_NK.size(0)});
  if (!g.a_row_scale_M.empty())
    expect_rows("matmul", "a_row_scale", g.a_row_scale_M.layout(), {g.a_MK.size(0)});
  if (!g.b_row_scale_N.empty())
    expect_rows("matmul", "b_row_scale", g.b_row_scale_N.layout(), {g.b_NK.size(0)});
}

}  // namespace nibble
