// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope.h"
#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

TEST(Conformance, rope) {
  constexpr std::int64_t kShapes[][4] = {
      {1, 1, 2, 1}, {36, 3, 6, 12}, {70, 2, 64, 35}, {33, 5, 128, 16}, {9, 17, 80, 9}};  // T, H, D, seq_len
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

TEST(RopeConformance, HeadsOfAFusedMatrix) {
  // Two of the five heads of a row: the others stay as they are.
  compare<Rope>(
      rope, "heads 1 and 2 of 5",
      [&](Case& c) {
        return Rope{.x_THD = c.output("qkv", Bound::of(4e-7), 23, 5 * 32).cols(32, 2 * 32).split_last(2, 32),
                    .cos_SF = c.input_f32(1, 0, 40, 16),
                    .sin_SF = c.input_f32(1, 0, 40, 16),
                    .seq_len = 23};
      },
      {.strided = false});
}

}  // namespace
}  // namespace nibble
