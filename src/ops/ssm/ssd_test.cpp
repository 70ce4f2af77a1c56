// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/finite_difference.h"

namespace nibble {
namespace {

struct Case {
  std::int64_t tokens = 14, seq_len = 7, heads = 4, groups = 2, width = 3, state = 2, chunk = 3;
  float dt_min = 0, dt_max = 3.4028235e38f;
  std::vector<float> x, b, c, dt, a_log, d, dt_bias, y, states, dy, dx, db, dc, ddt, da_log, dd, ddt_bias;

  Case() {
    x = normal_vector(1, tokens * heads * width);
    b = normal_vector(2, tokens * groups * state);
    c = normal_vector(3, tokens * groups * state);
    dt = normal_vector(4, tokens * heads);
    a_log = normal_vector(5, heads, 0.5);
    d = normal_vector(6, heads);
    dt_bias = normal_vector(7, heads, 0.5);
    dy = normal_vector(8, x.size());
    y.resize(x.size());
    dx.resize(x.size());
    db.resize(b.size());
    dc.resize(c.size());
    ddt.resize(dt.size());
    da_log.resize(heads);
    dd.resize(heads);
    ddt_bias.resize(heads);
    states.resize(tokens / seq_len * chunks_of(seq_len, 1) * heads * width * state);
  }
  View<float> on_heads(std::vector<float>& v) const { return View<float>(v.data(), tokens, heads, width); }
  View<float> on_groups(std::vector<float>& v) const { return View<float>(v.data(), tokens, groups, state); }
  View<float> per_token(std::vector<float>& v) const { return View<float>(v.data(), tokens, heads); }
  View<float> per_head(std::vector<float>& v) const { return View<float>(v.data(), heads); }
  View<float> kept() {
    return View<float>(states.data(), tokens / seq_len * chunks_of(seq_len, chunk), heads, width, state);
  }
  Ssd forward() {
    return {.x_THP = RealView(on_heads(x)),
            .b_TGN = RealView(on_groups(b)),
            .c_TGN = RealView(on_groups(c)),
            .dt_TH = RealView(per_token(dt)),
            .a_log_H = per_head(a_log),
            .d_H = per_head(d),
            .dt_bias_H = per_head(dt_bias),
            .y_THP = on_heads(y),
            .states = kept(),
            .seq_len = seq_len,
            .chunk = chunk,
            .dt_min = dt_min,
            .dt_max = dt_max};
  }
  SsdBackward backward() {
    return {.x_THP = RealView(on_heads(x)),
            .b_TGN = RealView(on_groups(b)),
            .c_TGN = RealView(on_groups(c)),
            .dt_TH = RealView(per_token(dt)),
            .a_log_H = per_head(a_log),
            .d_H = per_head(d),
            .dt_bias_H = per_head(dt_bias),
            .states = kept(),
            .dy_THP = RealView(on_heads(dy)),
            .dx_THP = on_heads(dx),
            .db_TGN = on_groups(db),
            .dc_TGN = on_groups(dc),
            .ddt_TH = per_token(ddt),
            .da_log_H = per_head(da_log),
            .dd_H = per_head(dd),
            .ddt_bias_H = per_head(ddt_bias),
            .seq_len = seq_len,
            .chunk = chunk,
            .dt_min = dt_min,
            .dt_max = dt_max};
  }
};

class SsdOn : public testing::TestWithParam<BackendKind> {
 protected:
  HostDevice device;
  Stream stream{GetParam(), device, 1};
};

INSTANTIATE_TEST_SUITE_P(Backends, SsdOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(SsdOn, GradientsAgreeWithCentralDifferences) {
  Case s;
  ssd(stream, s.forward());
  ssd_backward(stream, s.backward());
  const auto loss = [&] {
    ssd(stream, s.forward());
    return dot(s.y, s.dy);
  };
  expect_gradient("x", s.x, s.dx, loss);
  expect_gradient("b", s.b, s.db, loss);
  expect_gradient("c", s.c, s.dc, loss);
  expect_gradient("dt", s.dt, s.ddt, loss);
  expect_gradient("a_log", s.a_log, s.da_log, loss);
  expect_gradient("d", s.d, s.dd, loss);
  expect_gradient("dt_bias", s.dt_bias, s.ddt_bias, loss);
}

TEST_P(SsdOn, WhereDtIsLimitedItsGradientIsZero) {
  Case s;
  s.dt_min = 0.4f;
  s.dt_max = 1.1f;
  ssd(stream, s.forward());
  ssd_backward(stream, s.backward());
  int low = 0, high = 0, free = 0;
  double bias = 0;
  for (std::size_t i = 0; i < s.dt.size(); ++i) {
    const double softplus = std::log1p(std::exp(double{s.dt[i]} + s.dt_bias[i % s.heads]));
    low += softplus < s.dt_min;
    high += softplus > s.dt_max;
    const bool limited = softplus < s.dt_min || softplus > s.dt_max;
    free += !limited;
    EXPECT_EQ(s.ddt[i] == 0, limited) << i;
    if (i % s.heads == 0) bias += s.ddt[i];
  }
  EXPECT_GT(low, 0);
  EXPECT_GT(high, 0);
  EXPECT_GT(free, 0);
  EXPECT_NEAR(bias, s.ddt_bias[0], 1e-5);
}

TEST_P(SsdOn, WithoutDecayTheOutputIsACausalSumOfProducts) {
  Case s;
  std::fill(s.a_log.begin(), s.a_log.end(), -80.0f);  // exp(dt a) = 1
  ssd(stream, s.forward());
  for (std::int64_t t = 0; t < s.tokens; ++t)
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t g = h / (s.heads / s.groups);
      double y = double{s.d[h]} * s.x[(t * s.heads + h) * s.width];
      for (std::int64_t from = t - t % s.seq_len; from <= t; ++from) {
        double cb = 0;
        for (std::int64_t n = 0; n < s.state; ++n)
          cb += double{s.c[(t * s.groups + g) * s.state + n]} * s.b[(from * s.groups + g) * s.state + n];
        y += cb * std::log1p(std::exp(double{s.dt[from * s.heads + h]} + s.dt_bias[h])) *
             s.x[(from * s.heads + h) * s.width];
      }
      EXPECT_NEAR(s.y[(t * s.heads + h) * s.width], y, 2e-5);
    }
}

TEST_P(SsdOn, TheStateBeforeAChunkIsTheStateAfterTheOneBefore) {
  // With C = a unit vector and d = 0 the output at the last token of a chunk is one column of the state.
  Case s;
  std::fill(s.d.begin(), s.d.end(), 0.0f);
  for (std::size_t i = 0; i < s.c.size(); ++i) s.c[i] = i % 2 == 1 ? 1.0f : 0.0f;
  ssd(stream, s.forward());
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t p = 0; p < s.width; ++p) {
      EXPECT_EQ(s.kept()(0, h, p, 1), 0.0f);
      EXPECT_EQ(s.kept()(3, h, p, 1), 0.0f);  // the second sequence starts anew
      EXPECT_NEAR(s.kept()(1, h, p, 1), s.y[(2 * s.heads + h) * s.width + p], 1e-6);
      EXPECT_NEAR(s.kept()(5, h, p, 1), s.y[((7 + 5) * s.heads + h) * s.width + p], 1e-6);
    }
}

TEST_P(SsdOn, TheChunkDoesNotChangeTheResult) {
  Case s;
  s.chunk = 1;
  ssd(stream, s.forward());
  ssd_backward(stream, s.backward());
  const std::vector<float> y = s.y, dx = s.dx, db = s.db, ddt = s.ddt;
  for (std::int64_t chunk : {2, 3, 7, 100}) {
    s.chunk = chunk;
    ssd(stream, s.forward());
    ssd_backward(stream, s.backward());
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(s.y[i], y[i], 1e-5) << chunk;
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(s.dx[i], dx[i], 1e-5) << chunk;
    for (std::size_t i = 0; i < db.size(); ++i) EXPECT_NEAR(s.db[i], db[i], 2e-5) << chunk;
    for (std::size_t i = 0; i < ddt.size(); ++i) EXPECT_NEAR(s.ddt[i], ddt[i], 2e-5) << chunk;
  }
}

TEST_P(SsdOn, ExtremeStepsAndDecaysStayFinite) {
  for (float a_log : {-80.0f, 0.0f, 10.0f, 80.0f})
    for (float dt : {-200.0f, -20.0f, 0.0f, 20.0f, 200.0f}) {
      Case s;
      std::fill(s.a_log.begin(), s.a_log.end(), a_log);
      for (std::size_t i = 0; i < s.dt.size(); i += 2) s.dt[i] = dt;
      ssd(stream, s.forward());
      ssd_backward(stream, s.backward());
      for (const auto* values : {&s.y, &s.states, &s.dx, &s.db, &s.dc, &s.ddt, &s.da_log, &s.dd, &s.ddt_bias})
        for (float v : *values) EXPECT_TRUE(std::isfinite(v)) << a_log << " " << dt;
    }
}

TEST(SsdCheck, NamesTheArgumentThatDoesNotFit) {
  Case s;
  Ssd a = s.forward();
  a.chunk = 0;
  EXPECT_THROW(check(a), Error);
  a = s.forward();
  a.chunk = 2;  // needs more states
  EXPECT_THROW(check(a), Error);
  SsdBackward b = s.backward();
  b.dc_TGN = s.on_heads(s.dx);
  EXPECT_THROW(check(b), Error);
}

}  // namespace
}  // namespace nibble
