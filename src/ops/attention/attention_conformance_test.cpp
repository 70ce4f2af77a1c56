// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/attention/attention.h"
#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

struct Shape {
  std::int64_t sequences, seq_len, heads, groups, width;
  float scale;
  std::string text() const {
    return fmt::format("{}x{} H={} G={} D={} scale={}", sequences, seq_len, heads, groups, width, scale);
  }
};

// One token, lengths around a tile (64), several tiles, grouped heads, widths that are no multiple of a
// vector, and a scale that makes the softmax nearly one-hot.
const Shape kShapes[] = {
    {3, 1, 2, 1, 4, 0.5f},  {2, 7, 4, 2, 5, 0.4f},    {1, 64, 2, 2, 32, 0.18f},
    {2, 65, 3, 1, 8, 0.3f}, {1, 150, 4, 2, 33, 0.2f}, {1, 70, 1, 1, 16, 20.0f},
};

// FP32 sums of up to 150 terms, a scaled query rounded once, and e^x within 1 ulp of an argument that itself
// carries the rounding of a dot product: 1e-7 times a few, times |score| where scores are large.
Bound bound_of(const Shape& s) { return Bound::of(s.scale > 1 ? 1e-3 : 1e-5); }

Attention forward_of(Case& c, const Shape& s, Bound bound) {
  const std::int64_t tokens = s.sequences * s.seq_len;
  return {.q_THD = c.input(tokens, s.heads, s.width),
          .k_TGD = c.input(tokens, s.groups, s.width),
          .v_TGD = c.input(tokens, s.groups, s.width),
          .out_THD = c.output("out", bound, tokens, s.heads, s.width),
          .lse_HT = c.output_f32("lse", bound, s.heads, tokens),
          .seq_len = s.seq_len,
          .scale = s.scale};
}

TEST(Conformance, attention) {
  for (const Shape& s : kShapes)
    conformance::compare<Attention>(attention, s.text(),
                                    [&](Case& c) { return forward_of(c, s, bound_of(s)); });
}

TEST(Conformance, attention_backward) {
  for (const Shape& s : kShapes)
    conformance::compare<AttentionBackward>(attention_backward, s.text(), [&](Case& c) {
      const Attention f = forward_of(c, s, Bound::same_bytes());
      HostDevice device;
      Stream stream(BackendKind::Ref, device, 1);
      attention(stream, f);
      const std::int64_t tokens = s.sequences * s.seq_len;
      const Bound bound = bound_of(s);
      return AttentionBackward{.q_THD = f.q_THD,
                               .k_TGD = f.k_TGD,
                               .v_TGD = f.v_TGD,
                               .out_THD = f.out_THD,
                               .lse_HT = f.lse_HT,
                               .dout_THD = c.input(tokens, s.heads, s.width),
                               .dq_THD = c.output("dq", bound, tokens, s.heads, s.width),
                               .dk_TGD = c.output("dk", bound, tokens, s.groups, s.width),
                               .dv_TGD = c.output("dv", bound, tokens, s.groups, s.width),
                               .seq_len = s.seq_len,
                               .scale = s.scale};
    });
}

}  // namespace
}  // namespace nibble
