// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <string_view>

namespace nibble {
namespace {

void check_tokens(std::string_view op, std::string_view name, const ConstRealView& v, std::int64_t tokens,
                  std::int64_t heads, std::int64_t width) {
  check(v.rank() == 3 && v.size(0) == tokens && v.size(1) == heads && v.size(2) == width,
        "{}: {} must be [{}, {}, {}]", op, name, tokens, heads, width);
  check(width == 1 || v.stride(2) == 1, "{}: the last axis of {} must be contiguous", op, name);
}

template <class Args>
void check_inputs(std::string_view op, const Args& a) {
  check(a.q_THD.rank() == 3 && a.k_TGD.rank() == 3, "{}: q and k must have the axes [tokens, heads, width]",
        op);
  const std::int64_t tokens = a.q_THD.size(0), heads = a.q_THD.size(1), width = a.q_THD.size(2);
  const std::int64_t groups = a.k_TGD.size(1);
  check(groups >= 1 && heads % groups == 0, "{}: {} query heads do not divide among {} key heads", op, heads,
        groups);
  check(a.seq_len >= 1 && tokens % a.seq_len == 0, "{}: {} tokens are not whole sequences of {}", op, tokens,
        a.seq_len);
  check_tokens(op, "q", a.q_THD, tokens, heads, width);
  check_tokens(op, "k", a.k_TGD, tokens, groups, width);
  check_tokens(op, "v", a.v_TGD, tokens, groups, width);
  check_tokens(op, "out", a.out_THD, tokens, heads, width);
  check(a.lse_HT.rank() == 2 && a.lse_HT.size(0) == heads && a.lse_HT.size(1) == tokens,
        "{}: lse must be [{}, {}]", op, heads, tokens);
}

}  // namespace

void check(const Attention& a) { check_inputs("attention", a); }

void check(const AttentionBackward& a) {
  constexpr std::string_view op = "attention_backward";
  check_inputs(op, a);
  const std::int64_t tokens = a.q_THD.size(0), heads = a.q_THD.size(1), width = a.q_THD.size(2);
  const std::int64_t groups = a.k_TGD.size(1);
  check_tokens(op, "dout", a.dout_THD, tokens, heads, width);
  check_tokens(op, "dq", a.dq_THD, tokens, heads, width);
  check_tokens(op, "dk", a.dk_TGD, tokens, groups, width);
  check_tokens(op, "dv", a.dv_TGD, tokens, groups, width);
}

}  // namespace nibble
