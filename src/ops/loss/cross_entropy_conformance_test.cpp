// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/loss/cross_entropy.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

// The GPU has a row in shared memory (up to 28000 columns in FP32, 56000 in BF16) or reads what is beyond it
// twice; with 300 rows it comes to a second row while the next one's logits are on their way.
constexpr std::int64_t kShapes[][3] = {
    {1, 1, 1},       {40, 5, 7},      {3, 16, 16},       {70, 300, 320},    {5, 1031, 1031},
    {7, 5000, 5120}, {300, 250, 256}, {1, 32000, 32100}, {3, 51300, 51304}, {1, 61500, 61504}};

CrossEntropy with_gradient(Case& c, std::int64_t T, std::int64_t vocab, std::int64_t V) {
  return {.logits_TV = ConstRealView(c.input_f32(3, 0, T, V)),
          .targets_T = c.ids(-1, static_cast<std::int32_t>(vocab), T),
          .loss_T = c.output_f32("loss", Bound::of(1e-6), T),
          .dlogits_TV = c.output("dlogits", Bound::of(2e-6), T, V),
          .grad_scale = 0.25f,
          .vocab = vocab};
}

TEST(Conformance, cross_entropy) {
  for (auto [T, vocab, V] : kShapes)
    compare<CrossEntropy>(cross_entropy, fmt::format("T={} vocab={} V={}", T, vocab, V),
                          [&](Case& c) { return with_gradient(c, T, vocab, V); });
}

TEST(CrossEntropyConformance, LargeLogitsAndOneThatWins) {
  compare<CrossEntropy>(cross_entropy, "logits of size 1000", [&](Case& c) {
    CrossEntropy op = with_gradient(c, 6, 500, 512);
    op.logits_TV = ConstRealView(c.input_f32(300, -1000, 6, 512));
    return op;
  });
}

TEST(CrossEntropyConformance, LogitsInTheActivationsType) {
  for (auto [T, vocab, V] : kShapes)
    compare<CrossEntropy>(cross_entropy, fmt::format("T={} vocab={} V={}", T, vocab, V), [&](Case& c) {
      CrossEntropy op = with_gradient(c, T, vocab, V);
      op.logits_TV = c.input(T, V);
      return op;
    });
}

TEST(CrossEntropyConformance, InPlaceAndWithoutGradient) {
  for (auto [T, vocab, V] : kShapes) {
    const std::string shape = fmt::format("T={} vocab={} V={}", T, vocab, V);
    compare<CrossEntropy>(cross_entropy, shape + " in place", [&](Case& c) {
      CrossEntropy op = with_gradient(c, T, vocab, V);
      const RealView logits = c.output("logits", Bound::of(2e-6), T, V);
      op.logits_TV = logits;
      op.dlogits_TV = logits;
      return op;
    });
    compare<CrossEntropy>(cross_entropy, shape + " without gradient",
                          [&](Case& c) {
                            CrossEntropy op = with_gradient(c, T, vocab, V);
                            op.dlogits_TV = {};
                            return op;
                          },
                          {.bf16 = false});
  }
}

}  // namespace
}  // namespace nibble
