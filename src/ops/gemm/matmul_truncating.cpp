// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/matmul_truncating.h"

#include "ops/expect.h"

namespace nibble {

void check(const MatMulTruncating& g) {
  constexpr std::string_view op = "matmul_truncating";
  check(g.format == Format::Nvfp4 || g.format == Format::Mxfp4, "{}: {} is not FP4; use nvfp4 or mxfp4", op,
        info(g.format).name);
  const auto check_operand = [&](std::string_view name, const View<const std::uint8_t>& codes,
                                 const View<const std::uint8_t>& scales) {
    check(codes.rank() == 2 && codes.size(1) >= 1, "{}: the codes of {} must be a matrix", op, name);
    const std::int64_t block = info(g.format).block / 2;
    expect_rows(op, name, codes.layout(), {codes.size(0), codes.size(1)});
    expect_rows(op, name, scales.layout(), {codes.size(0), (codes.size(1) + block - 1) / block});
  };
  check_operand("a", g.a_codes, g.a_scales);
  check_operand("b", g.b_codes, g.b_scales);
  check(g.a_codes.size(1) == g.b_codes.size(1), "{}: operands have {} and {} bytes of codes a row", op,
        g.a_codes.size(1), g.b_codes.size(1));
  const std::int64_t M = g.a_codes.size(0), N = g.b_codes.size(0);
  expect_rows(op, "c", g.c_MN.layout(), {M, N});
  check(g.beta == 0 || (g.beta == 1 && g.c_MN.dtype() == DType::F32),
        "{}: beta is 0, or 1 with an FP32 result", op);
  if (!g.bias_N.empty()) expect_rows(op, "bias", g.bias_N.layout(), {N});
  if (!g.a_row_scale_M.empty()) expect_rows(op, "a_row_scale", g.a_row_scale_M.layout(), {M});
  if (!g.b_row_scale_N.empty()) expect_rows(op, "b_row_scale", g.b_row_scale_N.layout(), {N});
}

}  // namespace nibble
