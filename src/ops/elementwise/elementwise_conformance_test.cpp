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

/// What squared_relu may have written. Nobody may write to it again.
RealView squares(Case& c, std::int64_t T, std::int64_t F) {
  const RealView y = c.output("y", Bound::same_bytes(), T, F);
  Case::fill(y, [&](auto t, auto f) { return y.get(t, f) < 0 ? 0.0f : y.get(t, f) * y.get(t, f); });
  return y;
}

TEST(Conformance, squared_relu_backward) {
  for (auto [T, F] : kShapes)
    compare<SquaredReluBackward>(squared_relu_backward, shape(T, F), [&](Case& c) {
      return SquaredReluBackward{.y_TF = squares(c, T, F),
                                 .dy_TF = c.input(T, F),
                                 .dx_TF = c.output("dx", Bound::same_bytes(), T, F),
                                 .amax = T % 2 == 0 ? nullptr : amax(c, 0)};
    });
}

TEST(SquaredReluConformance, OutputsInThePlaceOfInputs) {
  for (auto [T, F] : kShapes) {
    compare<SquaredRelu>(squared_relu, shape(T, F), [&](Case& c) {
      const RealView x = c.output("x", Bound::same_bytes(), T, F);
      return SquaredRelu{.x_TF = x, .y_TF = x, .amax = amax(c, 0)};
    });
    compare<SquaredReluBackward>(squared_relu_backward, shape(T, F), [&](Case& c) {
      const RealView d = c.output("d", Bound::same_bytes(), T, F);
      return SquaredReluBackward{.y_TF = squares(c, T, F), .dy_TF = d, .dx_TF = d, .amax = amax(c, 0)};
    });
  }
}

/// A gradient whose products need rounding, so that a root that is only near shows.
constexpr float kGradient = 0.703125f;

/// Every number of BF16 that is not negative, as a square: roots near the middle of two numbers among them.
TEST(SquaredReluConformance, RootsOfAllBf16Numbers) {
  constexpr std::int64_t kRow = 128, kRows = 0x7F80 / kRow;
  compare<SquaredReluBackward>(squared_relu_backward, "all of BF16", [&](Case& c) {
    const RealView y = c.output("y", Bound::same_bytes(), kRows, kRow);
    Case::fill(y, [&](auto i, auto j) { return bf16{static_cast<std::uint16_t>(i * kRow + j)}.value(); });
    const RealView dy = c.output("dy", Bound::same_bytes(), kRows, kRow);
    Case::fill(dy, [](auto, auto) { return kGradient; });
    return SquaredReluBackward{
        .y_TF = y, .dy_TF = dy, .dx_TF = c.output("dx", Bound::same_bytes(), kRows, kRow)};
  });
}

/// Why x need not be kept: of 2^-63 to 2^64, every BF16 number, and as many FP32 numbers spread over them.
TEST(SquaredReluConformance, TheRootOfTheSquareIsTheNumber) {
  constexpr std::int64_t kNumbers = 127 * 128;
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  for (const DType dtype : {DType::BF16, DType::F32}) {
    HostBuffer buffers[3] = {{device, kNumbers * sizeof(float)},
                             {device, kNumbers * sizeof(float)},
                             {device, kNumbers * sizeof(float)}};
    const auto matrix = [&](int i) {
      return RealView(buffers[i].as<void>(), dtype, Layout::contiguous(1, kNumbers));
    };
    const RealView x = matrix(0), y = matrix(1), dy = matrix(2);
    Case::fill(x, [&](auto, auto i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(64 * 128 + i) << 16;
      return bits_float(dtype == DType::BF16 ? bits
                                             : bits | (static_cast<std::uint32_t>(i) * 40503u & 0xFFFFu));
    });
    Case::fill(dy, [](auto, auto) { return kGradient; });
    squared_relu(stream, {.x_TF = x, .y_TF = y});
    squared_relu_backward(stream, {.y_TF = y, .dy_TF = dy, .dx_TF = dy});
    for (std::int64_t i = 0; i < kNumbers; ++i) {
      const float dx = 2 * x.get(0, i) * kGradient;
      ASSERT_EQ(dy.get(0, i), dtype == DType::BF16 ? bf16::nearest(dx).value() : dx) << x.get(0, i);
    }
  }
}

TEST(Conformance, column_sum) {
  for (auto [T, N] : kShapes)
    compare<ColumnSum>(column_sum, shape(T, N), [&](Case& c) {
      return ColumnSum{.x_TN = c.input(T, N), .sum_N = c.output_f32("sum", Bound::of(2e-6), N)};
    });
}

}  // namespace
}  // namespace nibble
