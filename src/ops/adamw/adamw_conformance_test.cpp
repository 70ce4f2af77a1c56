// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include <limits>

#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

constexpr std::int64_t kSizes[] = {1, 7, 1000, 40001};  // the last: three tiles, and a tail in each loop

/// A record in memory of the case: 8 floats hold it.
StepRecord* record(Case& c, const StepRecord& value) {
  static_assert(sizeof(StepRecord) <= 16 * sizeof(float));
  auto* r = reinterpret_cast<StepRecord*>(c.output_f32("record", Bound::same_bytes(), 16).data());
  *r = value;
  return r;
}

TEST(Conformance, adamw) {
  for (std::int64_t N : kSizes)
    for (std::uint32_t halted : {0u, 1u})
      for (bool copy : {false, true})
        compare<AdamW>(adamw, fmt::format("N={} halted={} copy={}", N, halted, copy),
                       [&](Case& c) {
                         AdamW a{.w_N = c.output_f32("w", Bound::of(1e-6), N),
                                 .m_N = c.output_f32("m", Bound::of(1e-6), N),
                                 .v_N = c.output_f32("v", Bound::of(1e-6), N),
                                 .grad_N = c.input_f32(0.1, 0, N),
                                 .record = record(c, {.lr = 1e-3f,
                                                      .inverse_correction1 = 10,
                                                      .inverse_correction2 = 20,
                                                      .grad_scale = 0.5f,
                                                      .halted = halted}),
                                 .weight_decay = 0.1f};
                         for (std::int64_t i = 0; i < N; ++i) a.v_N(i) = a.v_N(i) * a.v_N(i) * 0.01f;
                         if (copy) {
                           a.copy_N = c.output_as(DType::BF16, "copy", Bound::of(1e-6), N);
                           a.decays_G = c.bytes(2, (N + kDecayGroup - 1) / kDecayGroup);
                         }
                         return a;
                       },
                       {.bf16 = false, .strided = false});
}

TEST(Conformance, gate_update) {
  const double inf = std::numeric_limits<double>::infinity();
  for (double squares : {0.0, 0.25, 9.0, inf})
    for (std::int64_t fault : {-1, 7})
      for (float clip : {0.0f, 1.0f})
        compare<GateUpdate>(
            gate_update, fmt::format("squares={} fault={} clip={}", squares, fault, clip),
            [&](Case& c) {
              return GateUpdate{.record = record(c, {.fault = fault, .loss_sum = 3, .grad_squares = squares}),
                                .clip = clip};
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

TEST(Conformance, sum) {
  for (std::int64_t N : kSizes)
    compare<Sum>(
        sum, fmt::format("N={}", N),
        [&](Case& c) { return Sum{.x_N = c.input_f32(1, 3, N), .sum = c.number("sum", Bound::of(1e-12))}; },
        {.bf16 = false, .strided = false});
}

}  // namespace
}  // namespace nibble
