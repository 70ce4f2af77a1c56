// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/elementwise/elementwise.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

// 2048 and 8208: more than a block of a GPU takes of a row, in packs and one by one.
constexpr std::int64_t kShapes[][2] = {{1, 1},    {3, 7},    {33, 16},  {70, 50},
                                       {64, 257}, {131, 40}, {5, 2048}, {2, 8208}};

std::string shape(std::int64_t T, std::int64_t D) { return fmt::format("[{}, {}]", T, D); }

TEST(Conformance, add) {
  for (auto [T, D] : kShapes)
    compare<Add>(add, shape(T, D), [&](Case& c) {
      return Add{.x_TD = c.output("x", Bound::same_bytes(), T, D), .y_TD = c.input(T, D)};
    });
}

TEST(Conformance, cast) {
  for (auto [T, D] : kShapes)
    for (DType to : {DType::F32, DType::BF16})
      compare<Cast>(cast, shape(T, D), [&](Case& c) {
        return Cast{.in_TD = c.input(T, D), .out_TD = c.output_as(to, "out", Bound::same_bytes(), T, D)};
      });
}

/// A place for the amax of an output: off by the last bit of a BF16 where that output may be.
float* amax(Case& c, double relative) {
  if (relative > 0 && c.storage() == DType::BF16) relative = 0x1p-7;
  return c.output_f32("amax", Bound::of(relative), 1).data();
}

TEST(ElementwiseConformance, AddsInEitherType) {
  for (auto [T, D] : kShapes)
    for (DType to : {DType::F32, DType::BF16})
      compare<Add>(add, fmt::format("{} to {}", shape(T, D), name_of(to)), [&](Case& c) {
        return Add{.x_TD = c.output_as(to, "x", Bound::same_bytes(), T, D), .y_TD = c.input(T, D)};
      });
}

TEST(Conformance, swiglu) {
  for (auto [T, F] : kShapes)
    compare<SwiGlu>(swiglu, shape(T, F), [&](Case& c) {
      return SwiGlu{.gate_up_T2F = c.input(T, 2 * F),
                    .y_TF = c.output("y", Bound::of(4e-7), T, F),
                    .amax = T % 2 == 0 ? nullptr : amax(c, 4e-7)};
    });
}

TEST(Conformance, swiglu_backward) {
  for (auto [T, F] : kShapes)
    compare<SwiGluBackward>(swiglu_backward, shape(T, F), [&](Case& c) {
      return SwiGluBackward{.gate_up_T2F = c.input(T, 2 * F),
                            .dy_TF = c.input(T, F),
                            .dgate_up_T2F = c.output("dgate_up", Bound::of(1e-6), T, 2 * F),
                            .amax = T % 2 == 0 ? nullptr : amax(c, 1e-6)};
    });
}

TEST(Conformance, squared_relu) {
  for (auto [T, F] : kShapes)
    compare<SquaredRelu>(squared_relu, shape(T, F), [&](Case& c) {
      return SquaredRelu{.x_TF = c.input(T, F),
                         .y_TF = c.output("y", Bound::same_bytes(), T, F),
                         .amax = T % 2 == 0 ? nullptr : amax(c, 0)};
    });
}

TEST(Conformance, squared_relu_backward) {
  for (auto [T, F] : kShapes)
    compare<SquaredReluBackward>(squared_relu_backward, shape(T, F), [&](Case& c) {
      return SquaredReluBackward{.x_TF = c.input(T, F),
                                 .dy_TF = c.input(T, F),
                                 .dx_TF = c.output("dx", Bound::same_bytes(), T, F),
                                 .amax = T % 2 == 0 ? nullptr : amax(c, 0)};
    });
}

TEST(Conformance, column_sum) {
  for (auto [T, N] : kShapes)
    compare<ColumnSum>(column_sum, shape(T, N), [&](Case& c) {
      return ColumnSum{.x_TN = c.input(T, N), .sum_N = c.output_f32("sum", Bound::of(2e-6), N)};
    });
}

}  // namespace
}  // namespace nibble
