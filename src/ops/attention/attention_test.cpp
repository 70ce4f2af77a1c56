// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/finite_difference.h"

namespace nibble {
namespace {

struct Case {
  std::int64_t tokens = 6, seq_len = 3, heads = 4, groups = 2, width = 3;
  std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;

  Case() {
    q = normal_vector(1, tokens * heads * width);
    k = normal_vector(2, tokens * groups * width);
    v = normal_vector(3, tokens * groups * width);
    dout = normal_vector(4, q.size());
    out.resize(q.size());
    dq.resize(q.size());
    dk.resize(k.size());
    dv.resize(k.size());
    lse.resize(heads * tokens);
  }
  View<float> on_queries(std::vector<float>& x) const {
    return {x.data(), Layout::contiguous(tokens, heads, width)};
  }
  View<float> on_keys(std::vector<float>& x) const {
    return {x.data(), Layout::contiguous(tokens, groups, width)};
  }
  Attention forward() {
    return {.q_THD = RealView(on_queries(q)),
            .k_TGD = RealView(on_keys(k)),
            .v_TGD = RealView(on_keys(v)),
            .out_THD = on_queries(out),
            .lse_HT = View<float>(lse.data(), heads, tokens),
            .seq_len = seq_len,
            .scale = 0.7f};
  }
  AttentionBackward backward() {
    return {.q_THD = RealView(on_queries(q)),
            .k_TGD = RealView(on_keys(k)),
            .v_TGD = RealView(on_keys(v)),
            .out_THD = RealView(on_queries(out)),
            .lse_HT = View<float>(lse.data(), heads, tokens),
            .dout_THD = RealView(on_queries(dout)),
            .dq_THD = on_queries(dq),
            .dk_TGD = on_keys(dk),
            .dv_TGD = on_keys(dv),
            .seq_len = seq_len,
            .scale = 0.7f};
  }
};

class AttentionOn : public testing::TestWithParam<BackendKind> {
 protected:
  HostDevice device;
  Stream stream{GetParam(), device, 1};
};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(AttentionOn, GradientsAgreeWithCentralDifferences) {
  Case c;
  attention(stream, c.forward());
  attention_backward(stream, c.backward());
  const auto loss = [&] {
    attention(stream, c.forward());
    return dot(c.out, c.dout);
  };
  expect_gradient("q", c.q, c.dq, loss);
  expect_gradient("k", c.k, c.dk, loss);
  expect_gradient("v", c.v, c.dv, loss);
}

TEST_P(AttentionOn, TheFirstTokenOfEachSequenceSeesOnlyItself) {
  Case c;
  attention(stream, c.forward());
  for (std::int64_t t : {std::int64_t{0}, c.seq_len})
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t d = 0; d < c.width; ++d)
        EXPECT_EQ(c.out[(t * c.heads + h) * c.width + d], c.v[(t * c.groups + h / 2) * c.width + d]);
}

TEST_P(AttentionOn, EqualKeysGiveTheMeanOfTheValuesSeenSoFar) {
  Case c;
  std::fill(c.k.begin(), c.k.end(), 0.0f);
  attention(stream, c.forward());
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t seen = t % c.seq_len + 1;
    double sum = 0;
    for (std::int64_t s = t + 1 - seen; s <= t; ++s) sum += c.v[s * c.groups * c.width];
    EXPECT_NEAR(c.out[t * c.heads * c.width], sum / seen, 1e-6);
    EXPECT_NEAR(c.lse[t], std::log(static_cast<double>(seen)), 1e-6);
  }
}

TEST_P(AttentionOn, ALaterTokenChangesNothingBeforeIt) {
  Case c;
  attention(stream, c.forward());
  const std::vector<float> before = c.out;
  for (std::int64_t i = 0; i < c.groups * c.width; ++i) c.k[2 * c.groups * c.width + i] += 3.0f;
  attention(stream, c.forward());
  for (std::int64_t i = 0; i < 2 * c.heads * c.width; ++i) EXPECT_EQ(c.out[i], before[i]);
  EXPECT_NE(c.out[2 * c.heads * c.width], before[2 * c.heads * c.width]);
}

TEST_P(AttentionOn, HugeScoresStayFinite) {
  Case c;
  for (float& x : c.q) x *= 1e4f;
  for (float& x : c.k) x *= 1e4f;
  attention(stream, c.forward());
  attention_backward(stream, c.backward());
  for (const auto* values : {&c.out, &c.lse, &c.dq, &c.dk, &c.dv})
    for (float x : *values) EXPECT_TRUE(std::isfinite(x));
}

TEST(AttentionCheck, NamesTheArgumentThatDoesNotFit) {
  Case c;
  Attention a = c.forward();
  a.seq_len = 4;
  EXPECT_THROW(check(a), Error);
  a = c.forward();
  a.lse_HT = View<float>(c.lse.data(), 1, 1);
  EXPECT_THROW(check(a), Error);
  AttentionBackward b = c.backward();
  b.dk_TGD = c.on_queries(c.dq);
  EXPECT_THROW(check(b), Error);
}

}  // namespace
}  // namespace nibble
