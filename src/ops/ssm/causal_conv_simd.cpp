// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/causal_conv_kernels.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

constexpr int kStrip = kConvStrip;

inline void before_silu(const ConvStrip& s, std::int64_t i, float* __restrict sum) {
  for (int c = 0; c < kStrip; ++c) sum[c] = s.b[c];
  for (std::int64_t k = 0; k < s.width; ++k) {
    const float* __restrict w = s.w + k * kStrip;
    const float* __restrict x = s.x + (i + k) * kStrip;
    for (int c = 0; c < kStrip; ++c) sum[c] = fmaf(w[c], x[c], sum[c]);
  }
}

}  // namespace

void causal_conv_strip(const ConvStrip& s, float* y) {
  float sum[kStrip];
  for (std::int64_t i = 0; i < s.rows; ++i) {
    before_silu(s, i, sum);
    float* __restrict out = y + i * kStrip;
    for (int c = 0; c < kStrip; ++c) out[c] = vsilu(sum[c]);
  }
}

void causal_conv_backward_strip(const ConvStrip& s, const ConvStripGradients& g) {
  float sum[kStrip], ds[kStrip];
  float* __restrict db = g.db;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    before_silu(s, i, sum);
    const float* __restrict dy = g.dy + i * kStrip;
    for (int c = 0; c < kStrip; ++c) {
      const float sigmoid = vsigmoid(sum[c]);
      ds[c] = dy[c] * sigmoid * fmaf(sum[c], 1.0f - sigmoid, 1.0f);
    }
    for (int c = 0; c < kStrip; ++c) db[c] += ds[c];
    for (std::int64_t k = 0; k < s.width; ++k) {
      const float* __restrict w = s.w + k * kStrip;
      const float* __restrict x = s.x + (i + k) * kStrip;
      float* __restrict dw = g.dw + k * kStrip;
      float* __restrict dx = g.dx + (i + k) * kStrip;
      for (int c = 0; c < kStrip; ++c) {
        dw[c] = fmaf(ds[c], x[c], dw[c]);
        dx[c] = fmaf(ds[c], w[c], dx[c]);
      }
    }
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
