// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include "ops/expect.h"

namespace nibble {

void check(const AdamW& a) {
  nibble::check(a.w_N.rank() == 1, "adamw: w has {} axes, but needs 1", a.w_N.rank());
  const std::int64_t N = a.w_N.size(0);
  expect_rows("adamw", "w", a.w_N.layout(), {N});
  expect_rows("adamw", "m", a.m_N.layout(), {N});
  expect_rows("adamw", "v", a.v_N.layout(), {N});
  expect_rows("adamw", "grad", a.grad_N.layout(), {N});
  nibble::check(a.step >= 1, "adamw: step is {}, but counts from 1", a.step);
  if (a.copy_N.empty()) return;
  expect_rows("adamw", "copy", a.copy_N.layout(), {N});
  nibble::check(a.copy_N.dtype() == DType::BF16, "adamw: the compute copy is {}, but must be BF16",
                name_of(a.copy_N.dtype()));
}

void check(const SumSquares& s) {
  nibble::check(s.x_N.rank() == 1, "sum_squares: x has {} axes, but needs 1", s.x_N.rank());
  expect_contiguous_rows("sum_squares", "x", s.x_N.layout());
  nibble::check(s.sum != nullptr, "sum_squares: there is no place for the sum");
}

}  // namespace nibble
