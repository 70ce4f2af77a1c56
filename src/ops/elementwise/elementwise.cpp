// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise.h"

#include "ops/expect.h"

namespace nibble {
namespace {

void expect_matrix(std::string_view op, std::string_view argument, const Layout& layout) {
  nibble::check(layout.rank == 2, "{}: {} has {} axes, but needs 2", op, argument, layout.rank);
  expect_contiguous_rows(op, argument, layout);
}

void expect_like(std::string_view op, std::string_view argument, const Layout& layout, const Layout& like) {
  expect_rows(op, argument, layout, {like.size[0], like.size[1]});
}

}  // namespace

void check(const Add& a) {
  expect_matrix("add", "x", a.x_TD.layout());
  expect_like("add", "y", a.y_TD.layout(), a.x_TD.layout());
}

void check(const Cast& c) {
  expect_matrix("cast", "in", c.in_TD.layout());
  expect_like("cast", "out", c.out_TD.layout(), c.in_TD.layout());
}

void check(const SwiGlu& s) {
  expect_matrix("swiglu", "y", s.y_TF.layout());
  expect_rows("swiglu", "gate_up", s.gate_up_T2F.layout(), {s.y_TF.size(0), 2 * s.y_TF.size(1)});
}

void check(const SwiGluBackward& s) {
  constexpr std::string_view op = "swiglu_backward";
  expect_matrix(op, "dy", s.dy_TF.layout());
  const std::int64_t T = s.dy_TF.size(0), F = s.dy_TF.size(1);
  expect_rows(op, "gate_up", s.gate_up_T2F.layout(), {T, 2 * F});
  expect_rows(op, "dgate_up", s.dgate_up_T2F.layout(), {T, 2 * F});
}

void check(const SquaredRelu& s) {
  expect_matrix("squared_relu", "x", s.x_TF.layout());
  expect_like("squared_relu", "y", s.y_TF.layout(), s.x_TF.layout());
}

void check(const SquaredReluBackward& s) {
  constexpr std::string_view op = "squared_relu_backward";
  expect_matrix(op, "y", s.y_TF.layout());
  expect_like(op, "dy", s.dy_TF.layout(), s.y_TF.layout());
  expect_like(op, "dx", s.dx_TF.layout(), s.y_TF.layout());
}

void check(const ColumnSum& c) {
  expect_matrix("column_sum", "x", c.x_TN.layout());
  expect_rows("column_sum", "sum", c.sum_N.layout(), {c.x_TN.size(1)});
}

}  // namespace nibble
