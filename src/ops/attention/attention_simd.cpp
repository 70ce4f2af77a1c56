// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention_kernels.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

constexpr int kTile = kAttentionTile;

}  // namespace

void attention_softmax(float* scores, bool diagonal, const SoftmaxRows& rows) {
  float largest[kTile], sum[kTile];
  for (int q = 0; q < kTile; ++q) largest[q] = rows.largest[q];
  for (int k = 0; k < kTile; ++k) {
    const float* __restrict s = scores + k * kTile;
    const int first = diagonal ? k : 0;  // the first query that sees this key
    for (int q = 0; q < kTile; ++q) {
      const float seen = q >= first ? s[q] : largest[q];
      largest[q] = seen > largest[q] ? seen : largest[q];
    }
  }
  for (int q = 0; q < kTile; ++q) {
    rows.rescale[q] = vexp(rows.largest[q] - largest[q]);
    rows.largest[q] = largest[q];
    sum[q] = rows.sum[q] * rows.rescale[q];
  }
  for (int k = 0; k < kTile; ++k) {
    float* __restrict s = scores + k * kTile;
    const int first = diagonal ? k : 0;
    for (int q = 0; q < kTile; ++q) {
      const float p = vexp(s[q] - largest[q]);
      s[q] = q >= first ? p : 0.0f;
      sum[q] += s[q];
    }
  }
  for (int q = 0; q < kTile; ++q) rows.sum[q] = sum[q];
}

void attention_softmax_backward(float* scores, float* dp, bool diagonal, const float* lse,
                                const float* delta) {
  for (int k = 0; k < kTile; ++k) {
    float* __restrict s = scores + k * kTile;
    float* __restrict d = dp + k * kTile;
    const int first = diagonal ? k : 0;
    for (int q = 0; q < kTile; ++q) {
      const float p = vexp(s[q] - lse[q]);
      s[q] = q >= first ? p : 0.0f;
      d[q] = s[q] * (d[q] - delta[q]);
    }
  }
}

void attention_scale_rows(float* rows, const float* scale, std::int64_t count, std::int64_t cols) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* __restrict row = rows + i * cols;
    const float factor = scale[i];
    for (std::int64_t j = 0; j < cols; ++j) row[j] *= factor;
  }
}

void attention_column_dots(const float* a, const float* b, std::int64_t count, float* sums) {
  float sum[kTile] = {};
  for (std::int64_t i = 0; i < count; ++i)
    for (int q = 0; q < kTile; ++q) sum[q] = fmaf(a[i * kTile + q], b[i * kTile + q], sum[q]);
  for (int q = 0; q < kTile; ++q) sums[q] = sum[q];
}

}  // namespace nibble::cpu::NIBBLE_SIMD
