// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/conformance.h"
#include "ops/ssm/causal_conv.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

struct Shape {
  std::int64_t sequences, seq_len, channels, width;
  bool bias;
  std::string text() const {
    return fmt::format("{}x{} C={} K={} bias={}", sequences, seq_len, channels, width, bias);
  }
};

// Sequences shorter than the kernel, around a piece (128 tokens) and a run on the GPU (64), channels around a
// strip (64), in packs of four or eight or not, more than a block's threads have.
const Shape kShapes[] = {
    {3, 1, 5, 4, true},      {2, 2, 64, 4, false}, {2, 129, 70, 4, true},  {1, 260, 33, 3, true},
    {2, 128, 130, 1, false}, {2, 67, 40, 4, true}, {1, 64, 516, 4, false}, {1, 6, 1032, 4, true},
};

TEST(Conformance, causal_conv) {
  for (const Shape& s : kShapes)
    conformance::compare<CausalConv>(causal_conv, s.text(), [&](Case& c) {
      const std::int64_t tokens = s.sequences * s.seq_len;
      return CausalConv{.x_TC = c.input(tokens, s.channels),
                        .w_CK = c.input_f32(0.5, 0, s.channels, s.width),
                        .b_C = s.bias ? c.input_f32(0.5, 0, s.channels) : View<const float>(),
                        .y_TC = c.output("y", Bound::of(1e-6), tokens, s.channels),
                        .seq_len = s.seq_len};
    });
}

TEST(Conformance, causal_conv_backward) {
  for (const Shape& s : kShapes)
    conformance::compare<CausalConvBackward>(causal_conv_backward, s.text(), [&](Case& c) {
      const std::int64_t tokens = s.sequences * s.seq_len;
      // dw and db are sums over all tokens, one after another.
      return CausalConvBackward{
          .x_TC = c.input(tokens, s.channels),
          .w_CK = c.input_f32(0.5, 0, s.channels, s.width),
          .b_C = s.bias ? c.input_f32(0.5, 0, s.channels) : View<const float>(),
          .dy_TC = c.input(tokens, s.channels),
          .dx_TC = c.output("dx", Bound::of(2e-6), tokens, s.channels),
          .dw_CK = c.output_f32("dw", Bound::of(2e-6), s.channels, s.width),
          .db_C = s.bias ? c.output_f32("db", Bound::of(2e-6), s.channels) : View<float>(),
          .seq_len = s.seq_len};
    });
}

}  // namespace
}  // namespace nibble
