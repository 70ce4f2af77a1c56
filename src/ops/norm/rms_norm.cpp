// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm.h"

#include "ops/expect.h"

namespace nibble {

void check(const RmsNorm& n) {
  constexpr std::string_view op = "rms_norm";
  nibble::check(n.x_TD.rank() == 2, "{}: x has {} axes, but needs 2", op, n.x_TD.rank());
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  expect_rows(op, "x", n.x_TD.layout(), {T, D});
  expect_rows(op, "w", n.w_D.layout(), {D});
  expect_rows(op, "y", n.y_TD.layout(), {T, D});
  expect_rows(op, "rstd", n.rstd_T.layout(), {T});
}

void check(const AddRmsNorm& n) {
  constexpr std::string_view op = "add_rms_norm";
  nibble::check(n.x_TD.rank() == 2, "{}: x has {} axes, but needs 2", op, n.x_TD.rank());
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  expect_rows(op, "x", n.x_TD.layout(), {T, D});
  expect_rows(op, "y", n.y_TD.layout(), {T, D});
  expect_rows(op, "sum", n.sum_TD.layout(), {T, D});
  expect_rows(op, "w", n.w_D.layout(), {D});
  expect_rows(op, "normed", n.normed_TD.layout(), {T, D});
  expect_rows(op, "rstd", n.rstd_T.layout(), {T});
}

void check(const RmsNormBackward& n) {
  constexpr std::string_view op = "rms_norm_backward";
  nibble::check(n.x_TD.rank() == 2, "{}: x has {} axes, but needs 2", op, n.x_TD.rank());
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  expect_rows(op, "x", n.x_TD.layout(), {T, D});
  expect_rows(op, "w", n.w_D.layout(), {D});
  expect_rows(op, "rstd", n.rstd_T.layout(), {T});
  expect_rows(op, "dy", n.dy_TD.layout(), {T, D});
  expect_rows(op, "dx", n.dx_TD.layout(), {T, D});
  expect_rows(op, "dw", n.dw_D.layout(), {D});
  if (n.dx_copy_TD.empty()) return;
  expect_rows(op, "dx_copy", n.dx_copy_TD.layout(), {T, D});
  nibble::check(n.dx_TD.dtype() == DType::F32,
                "{}: dx_copy is for a dx of F32, and this one is {}; read dx itself", op,
                name_of(n.dx_TD.dtype()));
}

void check(const GatedRmsNorm& n) {
  constexpr std::string_view op = "gated_rms_norm";
  nibble::check(n.y_TD.rank() == 2, "{}: y has {} axes, but needs 2", op, n.y_TD.rank());
  const std::int64_t T = n.y_TD.size(0), D = n.y_TD.size(1);
  nibble::check(n.groups >= 1 && D % n.groups == 0, "{}: {} features do not divide into {} groups", op, D,
                n.groups);
  expect_rows(op, "y", n.y_TD.layout(), {T, D});
  expect_rows(op, "z", n.z_TD.layout(), {T, D});
  expect_rows(op, "w", n.w_D.layout(), {D});
  expect_rows(op, "out", n.out_TD.layout(), {T, D});
  expect_rows(op, "rstd", n.rstd_TG.layout(), {T, n.groups});
}

void check(const GatedRmsNormBackward& n) {
  constexpr std::string_view op = "gated_rms_norm_backward";
  nibble::check(n.y_TD.rank() == 2, "{}: y has {} axes, but needs 2", op, n.y_TD.rank());
  const std::int64_t T = n.y_TD.size(0), D = n.y_TD.size(1);
  nibble::check(n.groups >= 1 && D % n.groups == 0, "{}: {} features do not divide into {} groups", op, D,
                n.groups);
  expect_rows(op, "y", n.y_TD.layout(), {T, D});
  expect_rows(op, "z", n.z_TD.layout(), {T, D});
  expect_rows(op, "w", n.w_D.layout(), {D});
  expect_rows(op, "rstd", n.rstd_TG.layout(), {T, n.groups});
  expect_rows(op, "dout", n.dout_TD.layout(), {T, D});
  expect_rows(op, "dy", n.dy_TD.layout(), {T, D});
  expect_rows(op, "dz", n.dz_TD.layout(), {T, D});
  expect_rows(op, "dw", n.dw_D.layout(), {D});
}

}  // namespace nibble
