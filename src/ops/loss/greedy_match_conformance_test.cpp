// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/greedy_match.h"

#include <cmath>
#include <limits>

#include "ops/conformance.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

constexpr std::int64_t kShapes[][3] = {{1, 1, 1}, {40, 3, 7}, {300, 16, 16}, {70, 300, 320}, {5, 5000, 5120}};

/// Logits that are small whole numbers, so that many tie, and a NaN in one row of eight.
GreedyMatch with_ties(Case& c, std::int64_t T, std::int64_t vocab, std::int64_t V, float step) {
  const View<const float> drawn = c.input_f32(2, 0, T, V);
  const View<float> logits(const_cast<float*>(drawn.data()), drawn.layout());
  Case::fill(RealView(logits), [&](std::int64_t t, std::int64_t v) {
    if (t % 8 == 7 && v == vocab / 2) return std::numeric_limits<float>::quiet_NaN();
    return step == 0 ? logits(t, v) : std::round(logits(t, v) / step) * step;
  });
  return {.logits_TV = drawn,
          .targets_T = c.ids(-1, static_cast<std::int32_t>(vocab), T),
          .greedy_T = c.output_f32("greedy", Bound::same_bytes(), T),
          .vocab = vocab};
}

TEST(Conformance, greedy_match) {
  for (const float step : {0.0f, 1.0f, 100.0f})
    for (auto [T, vocab, V] : kShapes)
      compare<GreedyMatch>(greedy_match, fmt::format("T={} vocab={} V={} step {}", T, vocab, V, step),
                           [&](Case& c) { return with_ties(c, T, vocab, V, step); }, {.bf16 = false});
}

TEST(GreedyMatchConformance, TheFirstOfEqualLogitsWinsAndPaddingDoesNotCount) {
  HostDevice host;
  Stream stream(BackendKind::Ref, host, 1);
  const std::vector<float> logits = {1, 3, 3, 9, 1, 3, 3, 9, 1, 3, 3, 9, 1, 3, 3, 9};
  const std::vector<std::int32_t> targets = {1, 2, 0, -1};
  std::vector<float> greedy(4, 7);
  greedy_match(stream, {.logits_TV = View<const float>(logits.data(), 4, 4),
                        .targets_T = View<const std::int32_t>(targets.data(), 4),
                        .greedy_T = View<float>(greedy.data(), 4),
                        .vocab = 3});
  EXPECT_EQ(greedy, (std::vector<float>{1, 0, 0, 0}));
}

}  // namespace
}  // namespace nibble
