// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

namespace nibble::cpu {

/// Queries and keys of a tile of scores. Scores are kept as [key, query]: maxima and sums over the keys are
/// then taken lane by lane.
inline constexpr int kAttentionTile = 64;

/// The running softmax of the queries of a tile, [kAttentionTile] each.
struct SoftmaxRows {
  float* largest;  ///< starts at -infinity
  float* sum;      ///< of exp(score - largest); starts at 0
  float* rescale;  ///< out: what earlier sums and outputs must be multiplied by
};

/// `diagonal` says that query and key tiles begin at the same token: key k is seen by queries q >= k only.
#define NIBBLE_ATTENTION_KERNELS(level)                                                              \
  namespace level {                                                                                  \
  /* scores become exp(score - the new maximum), 0 where not seen. */                                \
  void attention_softmax(float* scores, bool diagonal, const SoftmaxRows&);                          \
  /* scores become probabilities and dp becomes the gradient of the scores. */                       \
  void attention_softmax_backward(float* scores, float* dp, bool diagonal, const float* lse,         \
                                  const float* delta);                                               \
  /* rows[i, j] *= scale[i] */                                                                       \
  void attention_scale_rows(float* rows, const float* scale, std::int64_t count, std::int64_t cols); \
  /* sums[q] = sum over d of a[d, q] b[d, q], kAttentionTile columns. */                             \
  void attention_column_dots(const float* a, const float* b, std::int64_t count, float* sums);       \
  }
NIBBLE_FOR_EACH_SIMD(NIBBLE_ATTENTION_KERNELS)
#undef NIBBLE_ATTENTION_KERNELS

}  // namespace nibble::cpu
