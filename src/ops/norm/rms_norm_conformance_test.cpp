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
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 7, 1}, {33, 16, 1}, {70, 48, 3}, {65, 258, 2}};

std::string text(const Shape& s) { return fmt::format("[{}, {}] groups={}", s.T, s.D, s.groups); }

TEST(Conformance, rms_norm) {
  for (const Shape& s : kShapes)
    compare<RmsNorm>(rms_norm, text(s), [&](Case& c) {
      return RmsNorm{.x_TD = c.input(s.T, s.D),
                     .w_D = c.input_f32(1, 0, s.D),
                     .y_TD = c.output("y", Bound::of(1e-6), s.T, s.D),
                     .rstd_T = c.output_f32("rstd", Bound::of(1e-6), s.T)};
    });
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

TEST(Conformance, gated_rms_norm) {
  for (const Shape& s : kShapes)
    compare<GatedRmsNorm>(gated_rms_norm, text(s), [&](Case& c) {
      return GatedRmsNorm{.y_TD = c.input(s.T, s.D),
                          .z_TD = c.input(s.T, s.D),
                          .w_D = c.input_f32(1, 0, s.D),
                          .out_TD = c.output("out", Bound::of(1e-6), s.T, s.D),
                          .rstd_TG = c.output_f32("rstd", Bound::of(1e-6), s.T, s.groups),
                          .groups = s.groups};
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
