// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/cross_entropy.h"

#include "ops/expect.h"

namespace nibble {

void check_targets(View<const std::int32_t> targets_T, std::int64_t vocab) {
  for (std::int64_t t = 0; t < targets_T.size(0); ++t)
    nibble::check(
        targets_T(t) >= -1 && targets_T(t) < vocab,
        "target {} at position {} is outside the vocabulary of {}; use the tokenizer that the model "
        "was built for, or a larger vocabulary",
        targets_T(t), t, vocab);
}

void check(const CrossEntropy& c) {
  constexpr std::string_view op = "cross_entropy";
  nibble::check(c.logits_TV.rank() == 2, "{}: logits have {} axes, but need 2", op, c.logits_TV.rank());
  const std::int64_t T = c.logits_TV.size(0), V = c.logits_TV.size(1);
  nibble::check(c.vocab >= 0 && c.vocab <= V, "{}: vocab is {}, but there are {} columns", op, c.vocab, V);
  expect_rows(op, "logits", c.logits_TV.layout(), {T, V});
  expect_rows(op, "loss", c.loss_T.layout(), {T});
  expect_sizes(op, "targets", c.targets_T.layout(), {T});
  if (!c.dlogits_TV.empty()) expect_rows(op, "dlogits", c.dlogits_TV.layout(), {T, V});
}

}  // namespace nibble
