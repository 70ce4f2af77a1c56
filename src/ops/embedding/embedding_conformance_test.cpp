// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/embedding/embedding.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

constexpr std::int64_t kShapes[][3] = {{1, 1, 1}, {40, 5, 7}, {70, 30, 130}};

TEST(Conformance, embedding) {
  for (auto [T, V, D] : kShapes)
    compare<Embedding>(embedding, fmt::format("T={} V={} D={}", T, V, D), [&](Case& c) {
      return Embedding{.ids_T = c.ids(0, static_cast<std::int32_t>(V), T),
                       .w_VD = c.input(V, D),
                       .x_TD = c.output("x", Bound::same_bytes(), T, D)};
    });
}

TEST(Conformance, embedding_backward) {
  for (auto [T, V, D] : kShapes)
    compare<EmbeddingBackward>(embedding_backward, fmt::format("T={} V={} D={}", T, V, D), [&](Case& c) {
      return EmbeddingBackward{.ids_T = c.ids(0, static_cast<std::int32_t>(V), T),
                               .dx_TD = c.input_f32(1, 0, T, D),
                               .dw_VD = c.output_f32("dw", Bound::same_bytes(), V, D)};
    });
}

}  // namespace
}  // namespace nibble
