// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/gemm/gemm.h"

/// MatMul with a scale a row of either operand, as row-scaled NVFP4 needs it.
namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

struct Shape {
  std::int64_t M, N, K;
};

TEST(Conformance, matmul_with_row_scales) {
  // A GPU finishes rows of a multiple of 8 in packs, 512 of them a block.
  for (const Shape& s : {Shape{1, 1, 1}, {33, 17, 48}, {300, 150, 64}, {130, 72, 32}})
    for (int form = 1; form < 4; ++form)
      for (const bool accumulate : {false, true})
        compare<MatMul>(matmul,
                        fmt::format("M={} N={} K={} form={} accumulate={}", s.M, s.N, s.K, form, accumulate),
                        [&](Case& c) {
                          MatMul g{.a_MK = c.input(s.M, s.K), .b_NK = c.input(s.N, s.K)};
                          g.c_MN = accumulate ? RealView(c.output_f32("c", Bound::of(8e-6), s.M, s.N))
                                              : c.output("c", Bound::of(8e-6), s.M, s.N);
                          g.a_scale = c.input_f32(0, 2.5, 1).data();
                          if (form & 1) g.a_row_scale_M = c.input_f32(1, 0.3, s.M);
                          if (form & 2) g.b_row_scale_N = c.input_f32(1, 0.3, s.N);
                          g.inverse_range = 0.7f;
                          if (form == 3) g.bias_N = c.input_f32(1, 0, s.N);
                          if (accumulate) g.beta = 1;
                          return g;
                        },
                        {.same_levels = false});
}

TEST(MatMulRowScales, MultiplyRowsAndColumnsOfTheProduct) {
  HostDevice device;
  for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu}) {
    Stream stream(kind, device, 1);
    const float a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 1, 1, 1}, rows[] = {10, 100}, cols[] = {1, 2, 4};
    float c[6] = {};
    matmul(stream, {.a_MK = View<const float>(a, 2, 2),
                    .b_NK = View<const float>(b, 3, 2),
                    .c_MN = View<float>(c, 2, 3),
                    .a_row_scale_M = View<const float>(rows, 2),
                    .b_row_scale_N = View<const float>(cols, 3)});
    const float expected[] = {10, 40, 120, 300, 800, 2800};
    for (int i = 0; i < 6; ++i) EXPECT_EQ(c[i], expected[i]) << i;
  }
}

}  // namespace
}  // namespace nibble
