// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/embedding/embedding.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

// The last ones: ids that occur hundreds of times, and more columns than a warp takes.
constexpr std::int64_t kShapes[][3] = {{1, 1, 1},       {40, 5, 7},    {70, 30, 130}, {300, 3, 37},
                                       {515, 1031, 64}, {130, 2, 768}, {9, 50, 2048}};

TEST(Conformance, embedding) {
  for (auto [T, V, D] : kShapes)
    compare<Embedding>(embedding, fmt::format("T={} V={} D={}", T, V, D), [&](Case& c) {
      return Embedding{.ids_T = c.ids(0, static_cast<std::int32_t>(V), T),
                       .w_VD = c.input(V, D),
                       .x_TD = c.output("x", Bound::same_bytes(), T, D)};
    });
}

TEST(EmbeddingConformance, RowsMayHaveAnotherTypeThanTheWeight) {
  for (auto [T, V, D] : kShapes)
    for (DType to : {DType::F32, DType::BF16})
      compare<Embedding>(embedding, fmt::format("T={} V={} D={} to {}", T, V, D, name_of(to)), [&](Case& c) {
        return Embedding{.ids_T = c.ids(0, static_cast<std::int32_t>(V), T),
                         .w_VD = c.input(V, D),
                         .x_TD = c.output_as(to, "x", Bound::same_bytes(), T, D)};
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

TEST(EmbeddingConformance, TheGradientMayBeBf16) {
  for (auto [T, V, D] : kShapes)
    compare<EmbeddingBackward>(
        embedding_backward, fmt::format("T={} V={} D={} of bf16", T, V, D), [&](Case& c) {
          const RealView dx = c.output_as(DType::BF16, "dx", Bound::same_bytes(), T, D);
          return EmbeddingBackward{.ids_T = c.ids(0, static_cast<std::int32_t>(V), T),
                                   .dx_TD = dx,
                                   .dw_VD = c.output_f32("dw", Bound::same_bytes(), V, D)};
        });
}

}  // namespace
}  // namespace nibble
