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

/// Sizes of tensors in a flat buffer, each from a group on. The second reaches over tiles of the cpu and
/// blocks of the GPU; later several lie in one block, and in one warp.
constexpr std::int64_t kTensors[] = {1, 40003, 37, 5000, 1500, 100, 16, 3, 31, 1700, 1024, 127, 48, 2049};

std::int64_t groups_of(std::int64_t size) { return (size + kDecayGroup - 1) / kDecayGroup; }

/// What stands out of a tensor, at its last element.
enum class Peak { Finite, Overflow, NaN, Infinity };

/// The weights have a largest magnitude that no error of the update moves over a rounding boundary of BF16.
/// Among numbers that are not finite an error has no measure: these weights stay where they are.
AdamW with_amaxes(Case& c, std::uint32_t halted, Peak peak) {
  constexpr auto kCount = static_cast<std::int64_t>(std::size(kTensors));
  std::int64_t groups = 0;
  for (const std::int64_t size : kTensors) groups += groups_of(size);
  // The last tensor ends within a group.
  const std::int64_t N = groups * kDecayGroup - 15;
  const bool finite = peak == Peak::Finite || peak == Peak::Overflow;
  const Bound bound = halted != 0 ? Bound::same_bytes() : Bound::of(1e-6);
  AdamW a{.w_N = c.output_f32("w", bound, N),
          .m_N = c.output_f32("m", bound, N),
          .v_N = c.output_f32("v", bound, N),
          .grad_N = c.input_f32(0.1, 0, N),
          .copy_N = c.output_as(DType::BF16, "copy", bound, N),
          .record = record(c, {.lr = finite ? 1e-3f : 0.0f,
                               .inverse_correction1 = 10,
                               .inverse_correction2 = 20,
                               .grad_scale = 0.5f,
                               .halted = halted}),
          .weight_decay = 0.1f,
          .decays_G = c.bytes(2, groups)};
  a.starts_S = c.ids(0, 1, kCount);
  a.amaxes_S = c.output_f32("amaxes", Bound::same_bytes(), kCount);
  auto* const starts = const_cast<std::int32_t*>(a.starts_S.data());
  for (std::int64_t i = 0; i < N; ++i) a.v_N(i) = 0.01f + a.v_N(i) * a.v_N(i) * 0.01f;
  std::int64_t first = 0;
  for (std::int64_t t = 0; t < kCount; ++t) {
    starts[t] = static_cast<std::int32_t>(first);
    float& w = a.w_N(first * kDecayGroup + kTensors[t] - 1);
    w = (t % 2 == 0 ? 64.0f : -64.0f) - static_cast<float>(t);
    const bool special = t % 3 != 2;  // some stay finite among the others
    if (special && peak == Peak::Overflow) w = std::numeric_limits<float>::max();
    if (special && peak == Peak::NaN) w = std::numeric_limits<float>::quiet_NaN();
    if (special && peak == Peak::Infinity) w = -std::numeric_limits<float>::infinity();
    first += groups_of(kTensors[t]);
  }
  return a;
}

TEST(AdamWConformance, LeavesTheAmaxOfEachTensorsCopy) {
  for (const Peak peak : {Peak::Finite, Peak::Overflow, Peak::NaN, Peak::Infinity})
    for (const std::uint32_t halted : {0u, 1u})
      compare<AdamW>(adamw, fmt::format("amaxes, peak={} halted={}", static_cast<int>(peak), halted),
                     [&](Case& c) { return with_amaxes(c, halted, peak); },
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
