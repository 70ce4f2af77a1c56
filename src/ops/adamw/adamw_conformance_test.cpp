// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"
#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

constexpr std::int64_t kSizes[] = {1, 7, 1000, 40001};  // the last: three tiles, and a tail in each loop

TEST(Conformance, adamw) {
  for (std::int64_t N : kSizes)
    for (std::int64_t step : {1, 1000})
      for (bool copy : {false, true})
        compare<AdamW>(adamw, fmt::format("N={} step={} copy={}", N, step, copy),
                       [&](Case& c) {
                         AdamW a{.w_N = c.output_f32("w", Bound::of(1e-6), N),
                                 .m_N = c.output_f32("m", Bound::of(1e-6), N),
                                 .v_N = c.output_f32("v", Bound::of(1e-6), N),
                                 .grad_N = c.input_f32(0.1, 0, N),
                                 .lr = 1e-3f,
                                 .weight_decay = 0.1f,
                                 .grad_scale = 0.5f,
                                 .step = step};
                         for (std::int64_t i = 0; i < N; ++i) a.v_N(i) = a.v_N(i) * a.v_N(i) * 0.01f;
                         if (copy) a.copy_N = c.output_as(DType::BF16, "copy", Bound::of(1e-6), N);
                         return a;
                       },
                       {.bf16 = false, .strided = false});
}

TEST(Conformance, sum_squares) {
  for (std::int64_t N : kSizes)
    compare<SumSquares>(sum_squares, fmt::format("N={}", N),
                        [&](Case& c) {
                          return SumSquares{.x_N = c.input_f32(1, 0, N),
                                            .sum = c.number("sum", Bound::of(1e-12))};
                        },
                        {.bf16 = false, .strided = false});
}

}  // namespace
}  // namespace nibble
