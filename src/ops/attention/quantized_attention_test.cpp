// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/quantized_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention/attention.h"
#include "ops/finite_difference.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

constexpr Format kInside[] = {Format::Bf16, Format::Fp8E4M3, Format::Nvfp4, Format::Mxfp8E4M3};

/// Width equals the length, so that v or dout can be the identity and the product shows P itself.
struct Case {
  std::int64_t tokens = 64, seq_len = 32, heads = 2, groups = 1, width = 32;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;

  Case() {
    q = normal_vector(1, tokens * heads * width);
    k = normal_vector(2, tokens * groups * width);
    v = normal_vector(3, k.size());
    dout = normal_vector(4, q.size());
    out.resize(q.size());
    dq.resize(q.size());
    dk.resize(k.size());
    dv.resize(k.size());
    lse.resize(heads * tokens);
  }
  View<float> of_heads(std::vector<float>& x) const {
    return {x.data(), Layout::contiguous(tokens, heads, width)};
  }
  View<float> of_groups(std::vector<float>& x) const {
    return {x.data(), Layout::contiguous(tokens, groups, width)};
  }
  View<float> lse_HT() { return View<float>(lse.data(), heads, tokens); }
  AttentionOperand on_heads(std::vector<float>& x) const { return {RealView(of_heads(x))}; }
  AttentionOperand on_groups(std::vector<float>& x) const { return {RealView(of_groups(x))}; }

  QuantizedAttention forward(Format pv) {
    return {.q = on_heads(q),
            .k = on_groups(k),
            .v = on_groups(v),
            .pv = pv,
            .out_THD = of_heads(out),
            .lse_HT = lse_HT(),
            .seq_len = seq_len,
            .scale = 0.2f};
  }
  QuantizedAttentionBackward backward(Format pv, Format ds) {
    return {.q = on_heads(q),
            .k = on_groups(k),
            .dout_p = on_heads(dout),
            .v_p = on_groups(v),
            .dout_v = on_heads(dout),
            .k_q = on_groups(k),
            .q_k = on_heads(q),
            .pv = pv,
            .ds = ds,
            .lse_HT = lse_HT(),
            .dq_THD = of_heads(dq),
            .dk_TGD = of_groups(dk),
            .dv_TGD = of_groups(dv),
            .seq_len = seq_len,
            .scale = 0.2f};
  }
  /// x[t, h, d] = 1 where d is the token's position in its sequence
  void make_identity(std::vector<float>& x, std::int64_t of) const {
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < of; ++h)
        for (std::int64_t d = 0; d < width; ++d) x[(t * of + h) * width + d] = t % seq_len == d ? 1.0f : 0.0f;
  }
};

double relative_error(const std::vector<float>& x, const std::vector<float>& exact) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - exact[i]) * (double{x[i]} - exact[i]);
    norm += double{exact[i]} * exact[i];
  }
  return std::sqrt(error / norm);
}

class QuantizedAttentionOn : public testing::TestWithParam<BackendKind> {
 protected:
  HostDevice device;
  Stream stream{GetParam(), device, 2};
};

INSTANTIATE_TEST_SUITE_P(Backends, QuantizedAttentionOn, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(QuantizedAttentionOn, WithoutFormatsItIsAttention) {
  Case c;
  quantized_attention(stream, c.forward(Format::Bf16));
  quantized_attention_backward(stream, c.backward(Format::Bf16, Format::Bf16));
  Case plain;
  attention(stream, {.q_THD = RealView(plain.of_heads(plain.q)),
                     .k_TGD = RealView(plain.of_groups(plain.k)),
                     .v_TGD = RealView(plain.of_groups(plain.v)),
                     .out_THD = plain.of_heads(plain.out),
                     .lse_HT = plain.lse_HT(),
                     .seq_len = plain.seq_len,
                     .scale = 0.2f});
  attention_backward(stream, {.q_THD = RealView(plain.of_heads(plain.q)),
                              .k_TGD = RealView(plain.of_groups(plain.k)),
                              .v_TGD = RealView(plain.of_groups(plain.v)),
                              .out_THD = RealView(plain.of_heads(plain.out)),
                              .lse_HT = plain.lse_HT(),
                              .dout_THD = RealView(plain.of_heads(plain.dout)),
                              .dq_THD = plain.of_heads(plain.dq),
                              .dk_TGD = plain.of_groups(plain.dk),
                              .dv_TGD = plain.of_groups(plain.dv),
                              .seq_len = plain.seq_len,
                              .scale = 0.2f});
  EXPECT_LT(relative_error(c.out, plain.out), 1e-6);
  EXPECT_LT(relative_error(c.lse, plain.lse), 1e-6);
  EXPECT_LT(relative_error(c.dq, plain.dq), 1e-6);
  EXPECT_LT(relative_error(c.dk, plain.dk), 1e-6);
  EXPECT_LT(relative_error(c.dv, plain.dv), 1e-6);
}

TEST_P(QuantizedAttentionOn, TheBackwardPassReadsTheForwardPassesP) {
  for (Format pv : kInside) {
    Case c;
    c.heads = 1;  // one head, so that dv is P^T alone
    c.q.resize(c.tokens * c.width);
    c.make_identity(c.v, 1);
    c.make_identity(c.dout, 1);
    quantized_attention(stream, c.forward(pv));
    quantized_attention_backward(stream, c.backward(pv, Format::Bf16));
    for (std::int64_t t = 0; t < c.tokens; ++t)
      for (std::int64_t s = 0; s < c.seq_len; ++s) {
        const std::int64_t first = t - t % c.seq_len;
        EXPECT_EQ(c.out[t * c.width + s], c.dv[(first + s) * c.width + t % c.seq_len])
            << info(pv).name << ", query " << t << ", key " << s;
      }
  }
}

TEST_P(QuantizedAttentionOn, PIsWhatTheQuantiserMakesOfProbabilities) {
  for (Format pv : {Format::Fp8E4M3, Format::Nvfp4, Format::Mxfp8E4M3}) {
    Case c;
    c.make_identity(c.v, 1);
    quantized_attention(stream, c.forward(Format::Bf16));
    const std::vector<float> p = c.out;
    quantized_attention(stream, c.forward(pv));
    const float one = 1;
    float amax = 0, scale = 0;
    std::vector<bf16> values(p.size());
    std::vector<float> source = p;
    quantize(stream, {.x_RC = RealView(View<float>(source.data(), c.tokens * c.heads, c.width)),
                      .spec = {.format = pv},
                      .amax_given = &one,
                      .amax = &amax,
                      .scale = &scale,
                      .values = View<bf16>(values.data(), c.tokens * c.heads, c.width)});
    const float alpha = (1.0f * scale) * gemm_inverse_range(pv, Format::Bf16);
    for (std::size_t i = 0; i < p.size(); ++i)
      EXPECT_EQ(c.out[i], alpha * values[i].value()) << info(pv).name << " at " << i;
  }
}

TEST_P(QuantizedAttentionOn, GradientsAreNearTheUnquantisedOnes) {
  Case exact;
  quantized_attention(stream, exact.forward(Format::Bf16));
  quantized_attention_backward(stream, exact.backward(Format::Bf16, Format::Bf16));
  // Half a step of an element over sqrt(3), relative to it: E4M3 0.018 to 0.036, E5M2 twice that, E2M1 about
  // 0.1 (docs/formats); dq and dk sum over independent errors, so theirs is that of one operand, not more.
  const struct {
    Format pv, ds;
    double bound;
  } kCases[] = {{Format::Fp8E4M3, Format::Fp8E5M2, 0.06},
                {Format::Mxfp8E4M3, Format::Mxfp8E4M3, 0.03},
                {Format::Nvfp4, Format::Nvfp4, 0.12}};
  for (const auto& f : kCases) {
    Case c;
    quantized_attention(stream, c.forward(f.pv));
    quantized_attention_backward(stream, c.backward(f.pv, f.ds));
    for (const auto& [x, y] : {std::pair(&c.out, &exact.out), std::pair(&c.dq, &exact.dq),
                               std::pair(&c.dk, &exact.dk), std::pair(&c.dv, &exact.dv)}) {
      EXPECT_LT(relative_error(*x, *y), f.bound) << info(f.pv).name;
      EXPECT_GT(relative_error(*x, *y), f.bound / 100) << info(f.pv).name;
    }
  }
}

TEST_P(QuantizedAttentionOn, TheScoresGradientsSumToZeroOverTheKeys) {
  // k of one everywhere: dq is then scale times that sum.
  Case c;
  quantized_attention(stream, c.forward(Format::Nvfp4));
  QuantizedAttentionBackward b = c.backward(Format::Nvfp4, Format::Bf16);
  std::vector<float> ones(c.k.size(), 1.0f);
  b.k_q = c.on_groups(ones);
  quantized_attention_backward(stream, b);
  for (float x : c.dq) EXPECT_NEAR(x, 0, 1e-6);
}

TEST(QuantizedAttention, CpuGivesTheReferencesBytes) {
  HostDevice device;
  for (Format pv : kInside) {
    const Format ds = pv == Format::Fp8E4M3 ? Format::Fp8E5M2 : pv;
    Case first, second;
    Stream ref(BackendKind::Ref, device, 1), cpu(BackendKind::Cpu, device, 2);
    quantized_attention(ref, first.forward(pv));
    quantized_attention_backward(ref, first.backward(pv, ds));
    quantized_attention(cpu, second.forward(pv));
    quantized_attention_backward(cpu, second.backward(pv, ds));
    EXPECT_EQ(first.out, second.out);
    EXPECT_EQ(first.lse, second.lse);
    EXPECT_EQ(first.dq, second.dq);
    EXPECT_EQ(first.dk, second.dk);
    EXPECT_EQ(first.dv, second.dv);
  }
}

TEST(QuantizedAttentionCheck, NamesWhatDoesNotFit) {
  Case c;
  QuantizedAttention a = c.forward(Format::Nvfp4);
  a.seq_len = 8;
  EXPECT_THROW(check(a), Error);
  a = c.forward(Format::Mxfp4);
  EXPECT_THROW(check(a), Error);
  QuantizedAttentionBackward b = c.backward(Format::Nvfp4, Format::Fp8E4M3);
  EXPECT_THROW(check(b), Error);
  b = c.backward(Format::Nvfp4, Format::Nvfp4);
  b.dout_v = c.on_groups(c.k);
  EXPECT_THROW(check(b), Error);
}

}  // namespace
}  // namespace nibble
