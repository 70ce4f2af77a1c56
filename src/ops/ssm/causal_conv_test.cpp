// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/causal_conv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/finite_difference.h"

namespace nibble {
namespace {

struct Case {
  std::int64_t tokens = 10, seq_len = 5, channels = 3, width = 4;
  bool bias = true;
  std::vector<float> x, w, b, y, dy, dx, dw, db;

  Case() {
    x = normal_vector(1, tokens * channels);
    w = normal_vector(2, channels * width);
    b = normal_vector(3, channels);
    dy = normal_vector(4, x.size());
    y.resize(x.size());
    dx.resize(x.size());
    dw.resize(w.size());
    db.resize(b.size());
  }
  View<float> rows(std::vector<float>& v) const { return View<float>(v.data(), tokens, channels); }
  CausalConv forward() {
    CausalConv a{.x_TC = RealView(rows(x)), .w_CK = View<float>(w.data(), channels, width), .y_TC = rows(y)};
    if (bias) a.b_C = View<float>(b.data(), channels);
    a.seq_len = seq_len;
    return a;
  }
  CausalConvBackward backward() {
    CausalConvBackward a{.x_TC = RealView(rows(x)),
                         .w_CK = View<float>(w.data(), channels, width),
                         .dy_TC = RealView(rows(dy)),
                         .dx_TC = rows(dx),
                         .dw_CK = View<float>(dw.data(), channels, width)};
    if (bias) a.b_C = View<float>(b.data(), channels);
    if (bias) a.db_C = View<float>(db.data(), channels);
    a.seq_len = seq_len;
    return a;
  }
};

class CausalConvOn : public testing::TestWithParam<BackendKind> {
 protected:
  HostDevice device;
  Stream stream{GetParam(), device, 1};
};

INSTANTIATE_TEST_SUITE_P(Backends, CausalConvOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(CausalConvOn, GradientsAgreeWithCentralDifferences) {
  for (bool bias : {true, false})
    for (std::int64_t width : {1, 3, 4}) {
      Case c;
      c.bias = bias;
      c.width = width;
      c.w.resize(c.channels * width);
      c.dw.resize(c.w.size());
      causal_conv_backward(stream, c.backward());
      const auto loss = [&] {
        causal_conv(stream, c.forward());
        return dot(c.y, c.dy);
      };
      expect_gradient("x", c.x, c.dx, loss);
      expect_gradient("w", c.w, c.dw, loss);
      if (bias) expect_gradient("b", c.b, c.db, loss);
    }
}

TEST_P(CausalConvOn, TheLastWeightMeetsTheTokenItself) {
  Case c;
  c.bias = false;
  for (std::size_t i = 0; i < c.w.size(); ++i) c.w[i] = i % 4 == 3 ? 1.0f : 0.0f;
  causal_conv(stream, c.forward());
  for (std::size_t i = 0; i < c.x.size(); ++i) EXPECT_NEAR(c.y[i], c.x[i] / (1 + std::exp(-c.x[i])), 1e-6);
}

TEST_P(CausalConvOn, ASequenceDoesNotSeeTheOneBefore) {
  Case c;
  causal_conv(stream, c.forward());
  const std::vector<float> before = c.y;
  c.x[4 * c.channels] += 5;  // the last token of the first sequence
  causal_conv(stream, c.forward());
  EXPECT_NE(c.y[4 * c.channels], before[4 * c.channels]);
  for (std::size_t i = 5 * c.channels; i < c.y.size(); ++i) EXPECT_EQ(c.y[i], before[i]);
}

TEST_P(CausalConvOn, ParameterGradientsAreAddedToWhatIsThere) {
  Case c;
  causal_conv_backward(stream, c.backward());
  const std::vector<float> once = c.dw;
  causal_conv_backward(stream, c.backward());
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(c.dw[i], 2 * once[i]);
}

TEST(CausalConvCheck, NamesTheArgumentThatDoesNotFit) {
  Case c;
  CausalConv a = c.forward();
  a.seq_len = 3;
  EXPECT_THROW(check(a), Error);
  CausalConvBackward b = c.backward();
  b.dw_CK = View<float>(c.dw.data(), c.width, c.channels);
  EXPECT_THROW(check(b), Error);
}

}  // namespace
}  // namespace nibble
