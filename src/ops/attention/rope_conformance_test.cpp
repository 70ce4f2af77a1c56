// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope.h"
#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

TEST(Conformance, rope) {
  constexpr std::int64_t kShapes[][4] = {{1, 1, 2, 1}, {36, 3, 6, 12}, {70, 2, 64, 35}};  // T, H, D, seq_len
  for (auto [T, H, D, S] : kShapes)
    for (bool inverse : {false, true})
      compare<Rope>(rope, fmt::format("T={} H={} D={} S={} inverse={}", T, H, D, S, inverse), [&](Case& c) {
        return Rope{.x_THD = c.output("x", Bound::of(4e-7), T, H, D),
                    .cos_SF = c.input_f32(1, 0, S, D / 2),
                    .sin_SF = c.input_f32(1, 0, S, D / 2),
                    .seq_len = S,
                    .inverse = inverse};
      });
}

}  // namespace
}  // namespace nibble
