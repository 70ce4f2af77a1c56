// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd.h"

#include <string_view>

namespace nibble {
namespace {

void check_tokens(std::string_view op, std::string_view name, const ConstRealView& v, std::int64_t tokens,
                  std::int64_t heads, std::int64_t width) {
  check(v.rank() == 3 && v.size(0) == tokens && v.size(1) == heads && v.size(2) == width,
        "{}: {} must be [{}, {}, {}]", op, name, tokens, heads, width);
  check(width == 1 || v.stride(2) == 1, "{}: the last axis of {} must be contiguous", op, name);
}

void check_per_head(std::string_view op, std::string_view name, const View<const float>& v,
                    std::int64_t heads) {
  check(v.rank() == 1 && v.size(0) == heads, "{}: {} must be [{}]", op, name, heads);
}

template <class Args>
void check_inputs(std::string_view op, const Args& a) {
  check(a.x_THP.rank() == 3 && a.b_TGN.rank() == 3, "{}: x and b must have the axes [tokens, heads, width]",
        op);
  const std::int64_t tokens = a.x_THP.size(0), heads = a.x_THP.size(1), groups = a.b_TGN.size(1);
  check(groups >= 1 && heads % groups == 0, "{}: {} heads do not divide among {} groups", op, heads, groups);
  check(a.seq_len >= 1 && tokens % a.seq_len == 0, "{}: {} tokens are not whole sequences of {}", op, tokens,
        a.seq_len);
  check(a.chunk >= 1, "{}: the chunk must be at least one token, not {}", op, a.chunk);
  check(a.dt_min <= a.dt_max, "{}: dt_min {} is above dt_max {}", op, a.dt_min, a.dt_max);
  check_tokens(op, "x", a.x_THP, tokens, heads, a.x_THP.size(2));
  check_tokens(op, "b", a.b_TGN, tokens, groups, a.b_TGN.size(2));
  check_tokens(op, "c", a.c_TGN, tokens, groups, a.b_TGN.size(2));
  check(a.dt_TH.rank() == 2 && a.dt_TH.size(0) == tokens && a.dt_TH.size(1) == heads,
        "{}: dt must be [{}, {}]", op, tokens, heads);
  check_per_head(op, "a_log", a.a_log_H, heads);
  check_per_head(op, "d", a.d_H, heads);
  check_per_head(op, "dt_bias", a.dt_bias_H, heads);
  const std::int64_t chunks = tokens / a.seq_len * chunks_of(a.seq_len, a.chunk);
  check(a.states.rank() == 4 && a.states.is_contiguous() && a.states.size(0) == chunks &&
            a.states.size(1) == heads && a.states.size(2) == a.x_THP.size(2) &&
            a.states.size(3) == a.b_TGN.size(2),
        "{}: states must be [{}, {}, {}, {}] and contiguous", op, chunks, heads, a.x_THP.size(2),
        a.b_TGN.size(2));
}

}  // namespace

void check(const Ssd& a) {
  check_inputs("ssd", a);
  check_tokens("ssd", "y", a.y_THP, a.x_THP.size(0), a.x_THP.size(1), a.x_THP.size(2));
}

void check(const SsdBackward& a) {
  constexpr std::string_view op = "ssd_backward";
  check_inputs(op, a);
  const std::int64_t tokens = a.x_THP.size(0), heads = a.x_THP.size(1);
  const std::int64_t groups = a.b_TGN.size(1), state = a.b_TGN.size(2);
  check_tokens(op, "dy", a.dy_THP, tokens, heads, a.x_THP.size(2));
  check_tokens(op, "dx", a.dx_THP, tokens, heads, a.x_THP.size(2));
  check_tokens(op, "db", a.db_TGN, tokens, groups, state);
  check_tokens(op, "dc", a.dc_TGN, tokens, groups, state);
  check(a.ddt_TH.rank() == 2 && a.ddt_TH.size(0) == tokens && a.ddt_TH.size(1) == heads,
        "{}: ddt must be [{}, {}]", op, tokens, heads);
  check_per_head(op, "da_log", a.da_log_H, heads);
  check_per_head(op, "dd", a.dd_H, heads);
  check_per_head(op, "ddt_bias", a.ddt_bias_H, heads);
}

}  // namespace nibble
