// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/embedding.h"

#include "ops/expect.h"

namespace nibble {
namespace {

void expect_ids(std::string_view op, const View<const std::int32_t>& ids_T) {
  nibble::check(ids_T.rank() == 1, "{}: ids have {} axes, but need 1", op, ids_T.rank());
}

}  // namespace

void check_ids(View<const std::int32_t> ids_T, std::int64_t vocab) {
  for (std::int64_t t = 0; t < ids_T.size(0); ++t)
    nibble::check(ids_T(t) >= 0 && ids_T(t) < vocab,
                  "token {} at position {} is outside the vocabulary of {}; use the tokenizer that the model "
                  "was built for, or a larger vocabulary",
                  ids_T(t), t, vocab);
}

void check(const Embedding& e) {
  nibble::check(e.w_VD.rank() == 2, "embedding: w has {} axes, but needs 2", e.w_VD.rank());
  expect_contiguous_rows("embedding", "w", e.w_VD.layout());
  expect_ids("embedding", e.ids_T);
  expect_rows("embedding", "x", e.x_TD.layout(), {e.ids_T.size(0), e.w_VD.size(1)});
}

void check(const EmbeddingBackward& e) {
  constexpr std::string_view op = "embedding_backward";
  nibble::check(e.dw_VD.rank() == 2, "{}: dw has {} axes, but needs 2", op, e.dw_VD.rank());
  expect_contiguous_rows(op, "dw", e.dw_VD.layout());
  expect_ids(op, e.ids_T);
  expect_rows(op, "dx", e.dx_TD.layout(), {e.ids_T.size(0), e.dw_VD.size(1)});
}

}  // namespace nibble
