// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include <cmath>

#include "ops/expect.h"

namespace nibble {
namespace {

void expect_sum(std::string_view op, const View<const float>& x_N, const double* sum) {
  nibble::check(x_N.rank() == 1, "{}: x has {} axes, but needs 1", op, x_N.rank());
  expect_contiguous_rows(op, "x", x_N.layout());
  nibble::check(sum != nullptr, "{}: there is no place for the sum", op);
}

}  // namespace

void check(const GateUpdate& g) {
  nibble::check(g.record != nullptr, "gate_update: there is no record of the step");
  nibble::check(g.clip >= 0, "gate_update: clip is {}, but must not be negative", g.clip);
}

void check(const AdamW& a) {
  nibble::check(a.w_N.rank() == 1, "adamw: w has {} axes, but needs 1", a.w_N.rank());
  const std::int64_t N = a.w_N.size(0);
  expect_rows("adamw", "w", a.w_N.layout(), {N});
  expect_rows("adamw", "m", a.m_N.layout(), {N});
  expect_rows("adamw", "v", a.v_N.layout(), {N});
  expect_rows("adamw", "grad", a.grad_N.layout(), {N});
  nibble::check(a.record != nullptr, "adamw: there is no record of the step");
  if (!a.decays_G.empty())
    expect_rows("adamw", "decays", a.decays_G.layout(), {(N + kDecayGroup - 1) / kDecayGroup});
  nibble::check(a.starts_S.empty() == a.amaxes_S.empty(),
                "adamw: amaxes and the tensors that they belong to go together");
  if (!a.amaxes_S.empty()) {
    nibble::check(a.starts_S.rank() == 1, "adamw: starts has {} axes, but needs 1", a.starts_S.rank());
    expect_contiguous_rows("adamw", "starts", a.starts_S.layout());
    expect_rows("adamw", "amaxes", a.amaxes_S.layout(), {a.starts_S.size(0)});
  }
  if (a.copy_N.empty()) return;
  expect_rows("adamw", "copy", a.copy_N.layout(), {N});
  nibble::check(a.copy_N.dtype() == DType::BF16, "adamw: the compute copy is {}, but must be BF16",
                name_of(a.copy_N.dtype()));
}

void check(const SumSquares& s) { expect_sum("sum_squares", s.x_N, s.sum); }
void check(const Sum& s) { expect_sum("sum", s.x_N, s.sum); }

}  // namespace nibble
