// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/quantized_attention.h"

#include <string_view>

#include "ops/attention/quantized_lines.h"

namespace nibble {
namespace {

/// Sizes that every tensor of a call must have.
struct Sizes {
  std::string_view op;
  std::int64_t tokens, heads, groups, width;

  void expect(std::string_view name, const ConstRealView& v, std::int64_t of_heads) const {
    check(v.rank() == 3 && v.size(0) == tokens && v.size(1) == of_heads && v.size(2) == width,
          "{}: {} must be [{}, {}, {}]", op, name, tokens, of_heads, width);
  }
};

void check_inside(std::string_view op, std::string_view what, Format format, Format fp8,
                  std::int64_t seq_len) {
  check(format == Format::Bf16 || format == fp8 || format == Format::Nvfp4 || format == Format::Mxfp8E4M3,
        "{}: {} is quantised to {}, nvfp4 or mxfp8_e4m3, not to {}", op, what, info(fp8).name,
        info(format).name);
  check(seq_len % line_block(format) == 0, "{}: blocks of {} {} values do not divide sequences of {}", op,
        line_block(format), info(format).name, seq_len);
}

template <class Args>
Sizes check_inputs(std::string_view op, const Args& a) {
  check(a.q.x_THD.rank() == 3 && a.k.x_THD.rank() == 3,
        "{}: q and k must have the axes [tokens, heads, width]", op);
  const Sizes s{op, a.q.x_THD.size(0), a.q.x_THD.size(1), a.k.x_THD.size(1), a.q.x_THD.size(2)};
  check(s.groups >= 1 && s.heads % s.groups == 0, "{}: {} query heads do not divide among {} key heads", op,
        s.heads, s.groups);
  check(a.seq_len >= 1 && s.tokens % a.seq_len == 0, "{}: {} tokens are not whole sequences of {}", op,
        s.tokens, a.seq_len);
  s.expect("k", a.k.x_THD, s.groups);
  check(a.lse_HT.rank() == 2 && a.lse_HT.size(0) == s.heads && a.lse_HT.size(1) == s.tokens,
        "{}: lse must be [{}, {}]", op, s.heads, s.tokens);
  check_inside(op, "P", a.pv, Format::Fp8E4M3, a.seq_len);
  return s;
}

}  // namespace

void check(const QuantizedAttention& a) {
  const Sizes s = check_inputs("quantized_attention", a);
  s.expect("v", a.v.x_THD, s.groups);
  s.expect("out", a.out_THD, s.heads);
}

void check(const QuantizedAttentionBackward& a) {
  const Sizes s = check_inputs("quantized_attention_backward", a);
  for (const AttentionOperand* x : {&a.dout_p, &a.dout_v, &a.q_k}) s.expect("dout or q", x->x_THD, s.heads);
  for (const AttentionOperand* x : {&a.v_p, &a.k_q}) s.expect("v or k", x->x_THD, s.groups);
  s.expect("dq", a.dq_THD, s.heads);
  s.expect("dk", a.dk_TGD, s.groups);
  s.expect("dv", a.dv_TGD, s.groups);
  check_inside(s.op, "dS", a.ds, Format::Fp8E5M2, a.seq_len);
}

}  // namespace nibble
