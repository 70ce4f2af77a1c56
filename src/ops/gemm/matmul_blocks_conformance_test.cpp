// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/conformance.h"
#include "ops/gemm/matmul_blocks.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

View<const bf16> elements(Case& c, std::int64_t rows, std::int64_t cols, bool transposed) {
  const RealView x =
      c.output_as(DType::BF16, "", Bound{}, transposed ? cols : rows, transposed ? rows : cols);
  return transposed ? x.as<bf16>().transposed() : x.as<bf16>();
}

TEST(Conformance, matmul_blocks) {
  struct Shape {
    std::int64_t M, N, K;
    bool transposed;
  };
  for (const Shape& s :
       {Shape{1, 1, 1, false}, Shape{17, 9, 128, false}, Shape{33, 70, 300, true}, Shape{64, 48, 512, false}})
    conformance::compare<MatMulBlocks>(matmul_blocks,
                                       fmt::format("{}x{}x{} transposed={}", s.M, s.N, s.K, s.transposed),
                                       [&](Case& c) {
                                         const std::int64_t blocks = (s.K + 127) / 128;
                                         // 128 FP32 additions of products about 1 and some scaled sums of
                                         // them, beside an rms of sqrt(K).
                                         MatMulBlocks g{.a_MK = elements(c, s.M, s.K, s.transposed),
                                                        .b_NK = elements(c, s.N, s.K, s.transposed),
                                                        .a_scale_MI = c.input_f32(0.2, 1, s.M, blocks),
                                                        .b_scale_NI = c.input_f32(0.2, 1, s.N, blocks),
                                                        .c_MN = c.output("c", Bound::of(2e-6), s.M, s.N),
                                                        .factor = 0.75f,
                                                        .bias_N = c.input_f32(1, 0, s.N)};
                                         if (c.storage() == DType::F32) g.beta = 1;
                                         return g;
                                       },
                                       {.same_levels = false});
}

}  // namespace
}  // namespace nibble
