// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/attention/rope.h"
#include "ops/elementwise/elementwise.h"
#include "ops/finite_difference.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/rms_norm.h"

/// Backward ops on the reference against central differences of the forward ops, in FP32 storage. The loss is
/// a fixed random direction times the output, so its gradient with respect to the output is that direction.
namespace nibble {
namespace {

constexpr std::int64_t kT = 3, kD = 6;

class Gradients : public ::testing::Test {
 protected:
  using Vector = std::vector<float>;
  static View<float> matrix(Vector& v, std::int64_t columns = kD) {
    return {v.data(), Layout::contiguous(static_cast<std::int64_t>(v.size()) / columns, columns)};
  }
  static View<float> vector(Vector& v) {
    return {v.data(), Layout::contiguous(static_cast<std::int64_t>(v.size()))};
  }

  HostDevice device_;
  Stream stream_{BackendKind::Ref, device_, 1};
};

TEST_F(Gradients, RmsNormBackwardIsTheDerivative) {
  Vector x = normal_vector(1, kT * kD), w = normal_vector(2, kD, 0.5, 1), y(kT * kD), rstd(kT);
  Vector dy = normal_vector(3, kT * kD), dx(kT * kD), dw(kD);
  const auto loss = [&] {
    rms_norm(stream_, {.x_TD = matrix(x), .w_D = vector(w), .y_TD = matrix(y), .rstd_T = vector(rstd)});
    return dot(dy, y);
  };
  loss();
  rms_norm_backward(stream_, {.x_TD = matrix(x),
                              .w_D = vector(w),
                              .rstd_T = vector(rstd),
                              .dy_TD = matrix(dy),
                              .dx_TD = matrix(dx),
                              .dw_D = vector(dw)});
  expect_gradient("dx", x, dx, loss);
  expect_gradient("dw", w, dw, loss);
}

TEST_F(Gradients, OfAddRmsNormBothTermsReceiveTheNormsGradientAndTheSums) {
  Vector x = normal_vector(1, kT * kD), y = normal_vector(2, kT * kD), w = normal_vector(3, kD, 0.5, 1);
  Vector sum(kT * kD), normed(kT * kD), rstd(kT), dw(kD), copy(kT * kD);
  const Vector dsum = normal_vector(4, kT * kD);
  Vector dnormed = normal_vector(5, kT * kD), d = dsum;
  const auto loss = [&] {
    add_rms_norm(stream_, {.x_TD = matrix(x),
                           .y_TD = matrix(y),
                           .sum_TD = matrix(sum),
                           .w_D = vector(w),
                           .normed_TD = matrix(normed),
                           .rstd_T = vector(rstd)});
    return dot(dnormed, normed) + dot(dsum, sum);
  };
  loss();
  rms_norm_backward(stream_, {.x_TD = matrix(sum),
                              .w_D = vector(w),
                              .rstd_T = vector(rstd),
                              .dy_TD = matrix(dnormed),
                              .dx_TD = matrix(d),
                              .dw_D = vector(dw),
                              .dx_copy_TD = matrix(copy)});
  EXPECT_EQ(copy, d);
  expect_gradient("dx", x, d, loss);
  expect_gradient("dy", y, d, loss);
  expect_gradient("dw", w, dw, loss);
}

TEST_F(Gradients, GatedRmsNormBackwardIsTheDerivativeWithOneGroupAndWithThree) {
  for (int groups : {1, 3}) {
    Vector y = normal_vector(1, kT * kD), z = normal_vector(2, kT * kD), w = normal_vector(3, kD, 0.5, 1);
    Vector out(kT * kD), rstd(static_cast<std::size_t>(kT * groups)), dout = normal_vector(4, kT * kD);
    Vector dy(kT * kD), dz(kT * kD), dw(kD);
    // A large eps: groups of two small numbers would else have too much curvature for a difference quotient.
    const float eps = 0.5f;
    const auto loss = [&] {
      gated_rms_norm(stream_, {.y_TD = matrix(y),
                               .z_TD = matrix(z),
                               .w_D = vector(w),
                               .out_TD = matrix(out),
                               .rstd_TG = matrix(rstd, groups),
                               .groups = groups,
                               .eps = eps});
      return dot(dout, out);
    };
    loss();
    gated_rms_norm_backward(stream_, {.y_TD = matrix(y),
                                      .z_TD = matrix(z),
                                      .w_D = vector(w),
                                      .rstd_TG = matrix(rstd, groups),
                                      .dout_TD = matrix(dout),
                                      .dy_TD = matrix(dy),
                                      .dz_TD = matrix(dz),
                                      .dw_D = vector(dw),
                                      .groups = groups});
    expect_gradient("dy", y, dy, loss);
    expect_gradient("dz", z, dz, loss);
    expect_gradient("dw", w, dw, loss);
  }
}

TEST_F(Gradients, SwiGluBackwardIsTheDerivative) {
  Vector gate_up = normal_vector(1, kT * 2 * kD, 2), y(kT * kD), dy = normal_vector(2, kT * kD);
  Vector d(kT * 2 * kD);
  const auto loss = [&] {
    swiglu(stream_, {.gate_up_T2F = matrix(gate_up, 2 * kD), .y_TF = matrix(y)});
    return dot(dy, y);
  };
  swiglu_backward(
      stream_,
      {.gate_up_T2F = matrix(gate_up, 2 * kD), .dy_TF = matrix(dy), .dgate_up_T2F = matrix(d, 2 * kD)});
  expect_gradient("dgate_up", gate_up, d, loss);
}

TEST_F(Gradients, SquaredReluBackwardIsTheDerivative) {
  Vector x = normal_vector(1, kT * kD), y(kT * kD), dy = normal_vector(2, kT * kD), dx(kT * kD);
  for (float& v : x)
    if (std::abs(v) < 0.05f) v = 0.05f;  // the second derivative jumps at 0
  const auto loss = [&] {
    squared_relu(stream_, {.x_TF = matrix(x), .y_TF = matrix(y)});
    return dot(dy, y);
  };
  squared_relu(stream_, {.x_TF = matrix(x), .y_TF = matrix(y)});
  squared_relu_backward(stream_, {.y_TF = matrix(y), .dy_TF = matrix(dy), .dx_TF = matrix(dx)});
  expect_gradient("dx", x, dx, loss);
}

TEST_F(Gradients, CrossEntropyGradientIsTheDerivativeOfItsSum) {
  const std::int64_t V = kD, vocab = 5;
  Vector logits = normal_vector(1, kT * V, 2), losses(kT), d(kT * V);
  const std::vector<std::int32_t> targets = {4, -1, 0};
  const auto run = [&](RealView dlogits) {
    cross_entropy(stream_, {.logits_TV = matrix(logits),
                            .targets_T = {targets.data(), Layout::contiguous(kT)},
                            .loss_T = vector(losses),
                            .dlogits_TV = dlogits,
                            .grad_scale = 3,
                            .vocab = vocab});
    return 3 * (double{losses[0]} + losses[1] + losses[2]);
  };
  run(matrix(d));
  EXPECT_EQ(losses[1], 0) << "an ignored token has no loss";
  expect_gradient("dlogits", logits, d, [&] { return run({}); });
}

TEST_F(Gradients, RopeBackwardIsTheInverseRotation) {
  const std::int64_t half = kD / 2;
  Vector angle = normal_vector(1, kT * half), c(angle.size()), s(angle.size());
  for (std::size_t i = 0; i < angle.size(); ++i) c[i] = std::cos(angle[i]), s[i] = std::sin(angle[i]);
  Vector x = normal_vector(2, 2 * kT * kD), dy = normal_vector(3, 2 * kT * kD), dx = dy;  // two sequences
  const auto turn = [&](Vector& v, bool inverse) {
    rope(stream_, {.x_THD = View<float>(v.data(), 2 * kT, 1, kD),
                   .cos_SF = matrix(c, half),
                   .sin_SF = matrix(s, half),
                   .seq_len = kT,
                   .inverse = inverse});
  };
  turn(dx, true);
  expect_gradient("dx", x, dx, [&] {
    Vector y = x;
    turn(y, false);
    return dot(dy, y);
  });
}

TEST_F(Gradients, ColumnSumAddsUpWhatABiasReceives) {
  Vector x = {1, 2, 3, 4, 5, 6}, sum = {10, 20};
  column_sum(stream_, {.x_TN = matrix(x, 2), .sum_N = vector(sum)});
  EXPECT_EQ(sum, (Vector{19, 32}));
}

}  // namespace
}  // namespace nibble
