// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/causal_conv.h"

#include <string_view>

namespace nibble {
namespace {

void check_rows(std::string_view op, std::string_view name, const ConstRealView& v, std::int64_t tokens,
                std::int64_t channels) {
  check(v.rank() == 2 && v.size(0) == tokens && v.size(1) == channels, "{}: {} must be [{}, {}]", op, name,
        tokens, channels);
  check(channels == 1 || v.stride(1) == 1, "{}: the last axis of {} must be contiguous", op, name);
}

template <class Args>
void check_inputs(std::string_view op, const Args& a) {
  check(a.x_TC.rank() == 2, "{}: x must have the axes [tokens, channels]", op);
  const std::int64_t tokens = a.x_TC.size(0), channels = a.x_TC.size(1);
  check_rows(op, "x", a.x_TC, tokens, channels);
  check(a.seq_len >= 1 && tokens % a.seq_len == 0, "{}: {} tokens are not whole sequences of {}", op, tokens,
        a.seq_len);
  check(a.w_CK.rank() == 2 && a.w_CK.size(0) == channels && a.w_CK.size(1) >= 1,
        "{}: w must be [{}, kernel width]", op, channels);
  check(a.b_C.empty() || (a.b_C.rank() == 1 && a.b_C.size(0) == channels), "{}: b must be [{}] or empty", op,
        channels);
}

}  // namespace

void check(const CausalConv& a) {
  check_inputs("causal_conv", a);
  check_rows("causal_conv", "y", a.y_TC, a.x_TC.size(0), a.x_TC.size(1));
}

void check(const CausalConvBackward& a) {
  constexpr std::string_view op = "causal_conv_backward";
  check_inputs(op, a);
  const std::int64_t tokens = a.x_TC.size(0), channels = a.x_TC.size(1);
  check_rows(op, "dy", a.dy_TC, tokens, channels);
  check_rows(op, "dx", a.dx_TC, tokens, channels);
  check(a.dw_CK.layout().same_sizes(a.w_CK.layout()), "{}: dw must have the sizes of w", op);
  check(a.db_C.empty() || (a.db_C.rank() == 1 && a.db_C.size(0) == channels), "{}: db must be [{}] or empty",
        op, channels);
}

}  // namespace nibble
