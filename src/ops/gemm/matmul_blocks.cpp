// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/matmul_blocks.h"

#include "ops/expect.h"

namespace nibble {

void check(const MatMulBlocks& g) {
  constexpr std::string_view op = "matmul_blocks";
  check(g.a_MK.rank() == 2 && g.b_NK.rank() == 2, "{}: operands must be matrices", op);
  const std::int64_t M = g.a_MK.size(0), N = g.b_NK.size(0), K = g.a_MK.size(1);
  check(K >= 1 && g.b_NK.size(1) == K, "{}: operands reduce over {} and {} elements, but must agree", op, K,
        g.b_NK.size(1));
  const std::int64_t blocks = (K + kScaledBlock - 1) / kScaledBlock;
  expect_rows(op, "a_scale", g.a_scale_MI.layout(), {M, blocks});
  expect_rows(op, "b_scale", g.b_scale_NI.layout(), {N, blocks});
  expect_rows(op, "c", g.c_MN.layout(), {M, N});
  check(g.beta == 0 || (g.beta == 1 && g.c_MN.dtype() == DType::F32),
        "{}: beta is 0, or 1 with an FP32 result", op);
  if (!g.bias_N.empty()) expect_rows(op, "bias", g.bias_N.layout(), {N});
}

}  // namespace nibble
