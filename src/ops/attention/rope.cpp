// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope.h"

#include "ops/expect.h"

namespace nibble {

void check(const Rope& r) {
  nibble::check(r.x_THD.rank() == 3, "rope: x has {} axes, but needs 3", r.x_THD.rank());
  expect_contiguous_rows("rope", "x", r.x_THD.layout());
  const std::int64_t D = r.x_THD.size(2);
  nibble::check(D % 2 == 0, "rope: a head has {} features, but needs an even number", D);
  nibble::check(r.seq_len >= 1, "rope: seq_len is {}, but must be positive", r.seq_len);
  nibble::check(r.cos_SF.rank() == 2 && r.cos_SF.size(0) >= r.seq_len,
                "rope: the table of angles is shorter than the sequence of {} tokens", r.seq_len);
  expect_rows("rope", "cos", r.cos_SF.layout(), {r.cos_SF.size(0), D / 2});
  expect_rows("rope", "sin", r.sin_SF.layout(), {r.cos_SF.size(0), D / 2});
}

}  // namespace nibble
