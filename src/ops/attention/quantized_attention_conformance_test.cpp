// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/attention/quantized_attention.h"
#include "ops/conformance.h"
#include "quant/format_names.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

// FP64 sums everywhere, so what is left is one rounding to FP32 (BF16: one ulp more, which the comparison
// allows). A sum of another order that moves a probability over a tie would show as 1e-2 or more; none of
// these cases has one.
const Bound kBound = Bound::of(1e-6);

struct Shape {
  std::int64_t sequences, seq_len, heads, groups, width;
};
const Shape kShapes[] = {
    {1, 32, 2, 1, 16}, {2, 32, 4, 2, 32}, {1, 96, 1, 1, 17}, {2, 1, 2, 2, 4}, {1, 25, 3, 3, 8}};

/// The formats that blocks allow at this length: all, or those without blocks.
std::vector<Format> formats_of(const Shape& s, Format fp8) {
  if (s.seq_len % 32 != 0) return {Format::Bf16, fp8};
  return {Format::Bf16, fp8, Format::Nvfp4, Format::Mxfp8E4M3};
}

/// Normal numbers as if they were operand values; a scale that makes alpha about 1.
AttentionOperand operand(Case& c, const Shape& s, std::int64_t heads, Format format) {
  const ConstRealView x = c.input(s.sequences * s.seq_len, heads, s.width);
  const float scale = format == Format::Nvfp4 ? 2688.0f : 1.0f;
  return {x, format, is_quantized(format) ? c.input_f32(0, scale, std::int64_t{1}).data() : nullptr};
}

View<float> lse_of(Case& c, const Shape& s) {
  return c.output_f32("lse", kBound, s.heads, s.sequences * s.seq_len);
}

std::string text_of(const Shape& s, Format qk, Format pv) {
  return fmt::format("{}x{} H={} G={} D={} qk={} pv={}", s.sequences, s.seq_len, s.heads, s.groups, s.width,
                     info(qk).name, info(pv).name);
}

QuantizedAttention forward_of(Case& c, const Shape& s, Format qk, Format pv) {
  return {.q = operand(c, s, s.heads, qk),
          .k = operand(c, s, s.groups, qk),
          .v = operand(c, s, s.groups, pv),
          .pv = pv,
          .out_THD = c.output("out", kBound, s.sequences * s.seq_len, s.heads, s.width),
          .lse_HT = lse_of(c, s),
          .seq_len = s.seq_len,
          .scale = 0.3f};
}

QuantizedAttentionBackward backward_of(Case& c, const Shape& s, Format qk, Format pv, Format ds) {
  const QuantizedAttention f = forward_of(c, s, qk, pv);
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  quantized_attention(stream, f);
  const std::int64_t tokens = s.sequences * s.seq_len;
  const Format dout = pv == Format::Fp8E4M3 ? Format::Fp8E5M2 : pv;
  return {.q = f.q,
          .k = f.k,
          .dout_p = operand(c, s, s.heads, dout),
          .v_p = operand(c, s, s.groups, pv),
          .dout_v = operand(c, s, s.heads, dout),
          .k_q = operand(c, s, s.groups, ds),
          .q_k = operand(c, s, s.heads, ds),
          .pv = pv,
          .ds = ds,
          .lse_HT = f.lse_HT,
          .dq_THD = c.output("dq", kBound, tokens, s.heads, s.width),
          .dk_TGD = c.output("dk", kBound, tokens, s.groups, s.width),
          .dv_TGD = c.output("dv", kBound, tokens, s.groups, s.width),
          .seq_len = s.seq_len,
          .scale = 0.3f};
}

TEST(Conformance, quantized_attention) {
  for (const Shape& s : kShapes)
    for (Format pv : formats_of(s, Format::Fp8E4M3))
      conformance::compare<QuantizedAttention>(quantized_attention, text_of(s, Format::Nvfp4, pv),
                                               [&](Case& c) { return forward_of(c, s, Format::Nvfp4, pv); });
}

TEST(Conformance, quantized_attention_backward) {
  for (const Shape& s : kShapes)
    for (Format ds : formats_of(s, Format::Fp8E5M2)) {
      const Format pv = ds == Format::Fp8E5M2 ? Format::Fp8E4M3 : ds;
      conformance::compare<QuantizedAttentionBackward>(
          quantized_attention_backward, text_of(s, Format::Fp8E4M3, pv),
          [&](Case& c) { return backward_of(c, s, Format::Fp8E4M3, pv, ds); });
    }
}

}  // namespace
}  // namespace nibble
