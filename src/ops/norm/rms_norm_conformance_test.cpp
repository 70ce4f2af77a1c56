// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/norm/rms_norm.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

struct Shape {
  std::int64_t T, D;
  int groups;
};
// From 512 on: one for every way a GPU lays a row over threads, with rows that do not fill the last tile.
constexpr Shape kShapes[] = {{1, 1, 1},     {3, 7, 1},     {33, 16, 1},  {70, 48, 3},  {65, 258, 2},
                             {19, 37, 1},   {37, 768, 1},  {9, 512, 1},  {35, 896, 1}, {19, 1600, 1},
                             {18, 2048, 1}, {17, 2048, 4}, {3, 2304, 1}, {2, 8200, 1}};

/// For what only some of the kernels' paths can get wrong.
constexpr Shape kFewShapes[] = {{19, 37, 1}, {37, 768, 1}, {35, 896, 1}, {18, 2048, 1}};

std::string text(const Shape& s) { return fmt::format("[{}, {}] groups={}", s.T, s.D, s.groups); }

/// A place for the amax of an output: off by the last bit of a BF16 where that output is.
float* amax(Case& c, DType written, double relative) {
  return c.output_f32("amax", Bound::of(written == DType::BF16 ? 0x1p-7 : relative), 1).data();
}
float* amax(Case& c) { return amax(c, c.storage(), 1e-6); }

TEST(Conformance, rms_norm) {
  for (const Shape& s : kShapes)
    compare<RmsNorm>(rms_norm, text(s), [&](Case& c) {
      return RmsNorm{.x_TD = c.input(s.T, s.D),
                     .w_D = c.input_f32(1, 0, s.D),
                     .y_TD = c.output("y", Bound::of(1e-6), s.T, s.D),
                     .rstd_T = c.output_f32("rstd", Bound::of(1e-6), s.T),
                     .amax = s.T % 2 == 0 ? nullptr : amax(c)};
    });
}

AddRmsNorm add_norm(Case& c, const Shape& s, DType residual) {
  return {.x_TD = c.output_as(residual, "x", Bound::same_bytes(), s.T, s.D),
          .y_TD = c.output("y", Bound::same_bytes(), s.T, s.D),
          .sum_TD = c.output_as(residual, "sum", Bound::same_bytes(), s.T, s.D),
          .w_D = c.input_f32(1, 0, s.D),
          .normed_TD = c.output("normed", Bound::of(1e-6), s.T, s.D),
          .rstd_T = c.output_f32("rstd", Bound::of(1e-6), s.T),
          .amax = amax(c)};
}

TEST(Conformance, add_rms_norm) {
  for (const Shape& s : kShapes)
    for (DType residual : {DType::F32, DType::BF16})
      compare<AddRmsNorm>(add_rms_norm, fmt::format("{} residual={}", text(s), name_of(residual)),
                          [&](Case& c) { return add_norm(c, s, residual); });
}

TEST(RmsNormConformance, TheSumMayTakeThePlaceOfEitherTerm) {
  for (const Shape& s : kFewShapes)
    for (bool first : {false, true})
      compare<AddRmsNorm>(add_rms_norm, fmt::format("{} in place of {}", text(s), first ? "x" : "y"),
                          [&](Case& c) {
                            AddRmsNorm op = add_norm(c, s, c.storage());
                            const RealView shared = c.output("shared", Bound::same_bytes(), s.T, s.D);
                            op.sum_TD = shared;
                            (first ? op.x_TD : op.y_TD) = shared;
                            return op;
                          });
}

TEST(RmsNormConformance, ColumnsOfAWiderMatrix) {
  const Shape s{21, 256, 1};
  compare<RmsNorm>(rms_norm, "columns 64 to 320 of 400",
                   [&](Case& c) {
                     return RmsNorm{.x_TD = c.input(s.T, 400).cols(64, s.D),
                                    .w_D = c.input_f32(1, 0, s.D),
                                    .y_TD = c.output("y", Bound::of(1e-6), s.T, 400).cols(64, s.D),
                                    .rstd_T = c.output_f32("rstd", Bound::of(1e-6), s.T),
                                    .amax = amax(c)};
                   },
                   {.strided = false});
}

TEST(Conformance, rms_norm_backward) {
  for (const Shape& s : kShapes)
    compare<RmsNormBackward>(rms_norm_backward, text(s), [&](Case& c) {
      return RmsNormBackward{.x_TD = c.input(s.T, s.D),
                             .w_D = c.input_f32(1, 0, s.D),
                             .rstd_T = c.input_f32(0.1, 1, s.T),
                             .dy_TD = c.input(s.T, s.D),
                             .dx_TD = c.output_f32("dx", Bound::of(2e-6), s.T, s.D),
                             .dw_D = c.output_f32("dw", Bound::of(2e-6), s.D)};
    });
}

TEST(RmsNormConformance, BackwardWithACopyOfTheGradient) {
  for (const Shape& s : kFewShapes)
    for (DType residual : {DType::F32, DType::BF16})
      for (DType copy : {DType::F32, DType::BF16})
        compare<RmsNormBackward>(
            rms_norm_backward,
            fmt::format("{} residual={} copy={}", text(s), name_of(residual), name_of(copy)), [&](Case& c) {
              const RealView x = c.output_as(residual, "x", Bound::same_bytes(), s.T, s.D);
              return RmsNormBackward{.x_TD = x,
                                     .w_D = c.input_f32(1, 0, s.D),
                                     .rstd_T = c.input_f32(0.1, 1, s.T),
                                     .dy_TD = c.input(s.T, s.D),
                                     .dx_TD = c.output_f32("dx", Bound::of(2e-6), s.T, s.D),
                                     .dw_D = c.output_f32("dw", Bound::of(2e-6), s.D),
                                     .dx_copy_TD = c.output_as(copy, "dx_copy", Bound::of(2e-6), s.T, s.D),
                                     .amax = amax(c, copy, 2e-6)};
            });
}

TEST(RmsNormConformance, BackwardIntoABf16Gradient) {
  for (const Shape& s : kShapes)
    for (DType residual : {DType::F32, DType::BF16})
      compare<RmsNormBackward>(
          rms_norm_backward, fmt::format("{} residual={}", text(s), name_of(residual)), [&](Case& c) {
            const RealView x = c.output_as(residual, "x", Bound::same_bytes(), s.T, s.D);
            return RmsNormBackward{.x_TD = x,
                                   .w_D = c.input_f32(1, 0, s.D),
                                   .rstd_T = c.input_f32(0.1, 1, s.T),
                                   .dy_TD = c.input(s.T, s.D),
                                   .dx_TD = c.output_as(DType::BF16, "dx", Bound::of(2e-6), s.T, s.D),
                                   .dw_D = c.output_f32("dw", Bound::of(2e-6), s.D),
                                   .amax = s.T % 2 == 0 ? nullptr : amax(c, DType::BF16, 2e-6)};
          });
}

/// x = 0 and rstd = w = 1: what is added is dy itself, and the FP32 sum is the same one whoever computes it.
RmsNormBackward add_dy(Case& c, const Shape& s) {
  const RealView x = c.output("x", Bound::same_bytes(), s.T, s.D);
  Case::fill(x, [](std::int64_t, std::int64_t) { return 0.0f; });
  return {.x_TD = x,
          .w_D = c.input_f32(0, 1, s.D),
          .rstd_T = c.input_f32(0, 1, s.T),
          .dy_TD = c.input(s.T, s.D),
          .dx_TD = c.output_as(DType::BF16, "dx", Bound::same_bytes(), s.T, s.D),
          .dw_D = c.output_f32("dw", Bound::same_bytes(), s.D),
          .amax = c.output_f32("amax", Bound::same_bytes(), 1).data()};
}

TEST(RmsNormConformance, ABf16GradientIsTheSumRoundedOnceToNearestEven) {
  for (const Shape& s : kShapes) {
    compare<RmsNormBackward>(rms_norm_backward, text(s), [&](Case& c) { return add_dy(c, s); });

    HostDevice device;
    Stream stream(BackendKind::Ref, device, 1);
    Case c(device, 1, DType::BF16, 0);
    const RmsNormBackward op = add_dy(c, s);
    std::vector<float> sums;
    for (std::int64_t t = 0; t < s.T; ++t)
      for (std::int64_t d = 0; d < s.D; ++d) sums.push_back(op.dx_TD.get(t, d) + op.dy_TD.get(t, d));
    rms_norm_backward(stream, op);
    std::int64_t wrong = 0, up = 0, down = 0;
    for (std::int64_t i = 0; i < std::ssize(sums); ++i) {
      const float sum = sums[static_cast<std::size_t>(i)], stored = op.dx_TD.get(i / s.D, i % s.D);
      wrong += stored != bf16::nearest(sum).value() ? 1 : 0;
      up += std::abs(stored) > std::abs(sum) ? 1 : 0;
      down += std::abs(stored) < std::abs(sum) ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << text(s);
    EXPECT_TRUE(s.D < 100 || (up > 0 && down > 0)) << text(s) << ": the case tests nothing";
  }
}

TEST(Conformance, gated_rms_norm) {
  for (const Shape& s : kShapes)
    compare<GatedRmsNorm>(gated_rms_norm, text(s), [&](Case& c) {
      return GatedRmsNorm{.y_TD = c.input(s.T, s.D),
                          .z_TD = c.input(s.T, s.D),
                          .w_D = c.input_f32(1, 0, s.D),
                          .out_TD = c.output("out", Bound::of(1e-6), s.T, s.D),
                          .rstd_TG = c.output_f32("rstd", Bound::of(1e-6), s.T, s.groups),
                          .groups = s.groups,
                          .amax = s.T % 2 == 0 ? nullptr : amax(c)};
    });
}

TEST(Conformance, gated_rms_norm_backward) {
  for (const Shape& s : kShapes)
    compare<GatedRmsNormBackward>(gated_rms_norm_backward, text(s), [&](Case& c) {
      return GatedRmsNormBackward{.y_TD = c.input(s.T, s.D),
                                  .z_TD = c.input(s.T, s.D),
                                  .w_D = c.input_f32(1, 0, s.D),
                                  .rstd_TG = c.input_f32(0.1, 1, s.T, s.groups),
                                  .dout_TD = c.input(s.T, s.D),
                                  .dy_TD = c.output("dy", Bound::of(2e-6), s.T, s.D),
                                  .dz_TD = c.output("dz", Bound::of(2e-6), s.T, s.D),
                                  .dw_D = c.output_f32("dw", Bound::of(2e-6), s.D),
                                  .groups = s.groups};
    });
}

}  // namespace
}  // namespace nibble
