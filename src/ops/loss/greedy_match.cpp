// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/greedy_match.h"

#include "ops/expect.h"

namespace nibble {

void check(const GreedyMatch& g) {
  constexpr std::string_view op = "greedy_match";
  nibble::check(g.logits_TV.rank() == 2, "{}: logits have {} axes, but need 2", op, g.logits_TV.rank());
  const std::int64_t T = g.logits_TV.size(0), V = g.logits_TV.size(1);
  nibble::check(g.vocab >= 0 && g.vocab <= V, "{}: vocab is {}, but there are {} columns", op, g.vocab, V);
  expect_rows(op, "logits", g.logits_TV.layout(), {T, V});
  expect_rows(op, "greedy", g.greedy_T.layout(), {T});
  expect_sizes(op, "targets", g.targets_T.layout(), {T});
}

}  // namespace nibble
