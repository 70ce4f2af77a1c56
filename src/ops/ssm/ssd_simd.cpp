// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_kernels.h"

#include "ops/tile_io_kernels.h"
#include "ops/vector_math.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

constexpr int kTile = kSsdTile;

/// out[t] = sum over s of m[t, s], in the order of s.
inline void row_sums(const float* m, float* __restrict out) {
  float turned[kTile * kTile];
  transpose_tile(m, kTile, kTile, kTile, turned, kTile);
  for (int t = 0; t < kTile; ++t) out[t] = 0;
  for (int s = 0; s < kTile; ++s)
    for (int t = 0; t < kTile; ++t) out[t] += turned[s * kTile + t];
}

/// The log of the decay from each s < t to t, from that to t - 1: a masked cumulative sum. It never forms a
/// difference of two cumulative sums, which would cancel.
inline void extend(float* __restrict segment, int t, float log_decay) {
  for (int s = 0; s < kTile; ++s) segment[s] = s < t ? segment[s] + log_decay : 0.0f;
}

inline void decays_at_ends(const float* log_decay, const float* segment, float* __restrict decay_in,
                           float* __restrict decay_out) {
  float sum = 0;
  for (int t = 0; t < kTile; ++t) decay_in[t] = sum += log_decay[t];
  for (int t = 0; t < kTile; ++t) decay_in[t] = vexp(decay_in[t]);
  for (int s = 0; s < kTile; ++s) decay_out[s] = vexp(segment[s]);
}

}  // namespace

void ssd_steps(const float* raw, int used, const SsdStepRule& rule, const SsdSteps& out) {
  float* __restrict dt = out.dt;
  float* __restrict slope = out.slope;
  float* __restrict log_decay = out.log_decay;
  for (int t = 0; t < kTile; ++t) {
    const float z = raw[t] + rule.bias;
    const float softplus = vsoftplus(z);
    const float low = softplus < rule.dt_min ? rule.dt_min : softplus;
    const float limited = low > rule.dt_max ? rule.dt_max : low;
    dt[t] = t < used ? limited : 0.0f;
    slope[t] = t < used && limited == softplus ? vsigmoid(z) : 0.0f;
    log_decay[t] = dt[t] * rule.a;
  }
}

void ssd_decays(const float* log_decay, float* decay_in, float* decay_out) {
  float segment[kTile] = {};
  for (int t = 0; t < kTile; ++t) extend(segment, t, log_decay[t]);
  decays_at_ends(log_decay, segment, decay_in, decay_out);
}

void ssd_scores(const float* log_decay, const float* k, float* m, float* decay_in, float* decay_out) {
  float segment[kTile] = {};
  for (int t = 0; t < kTile; ++t) {
    extend(segment, t, log_decay[t]);
    const float* __restrict from = k + t * kTile;
    float* __restrict to = m + t * kTile;
    for (int s = 0; s < kTile; ++s) {
      const float score = from[s] * vexp(segment[s]);
      to[s] = s <= t ? score : 0.0f;
    }
  }
  decays_at_ends(log_decay, segment, decay_in, decay_out);
}

void ssd_scores_backward(const float* log_decay, const float* k, float* z, float* m, float* dk,
                         float* crossing, float* decay_in, float* decay_out) {
  float segment[kTile] = {};
  for (int t = 0; t < kTile; ++t) {
    extend(segment, t, log_decay[t]);
    const float* __restrict from = k + t * kTile;
    float* __restrict score = m + t * kTile;
    float* __restrict dscore = z + t * kTile;
    float* __restrict sum = dk + t * kTile;
    for (int s = 0; s < kTile; ++s) {
      const float decay = vexp(segment[s]);
      const float seen = s <= t ? decay : 0.0f;
      const float dm = s <= t ? dscore[s] : 0.0f;
      score[s] = s <= t ? from[s] * decay : 0.0f;
      sum[s] = fmaf(dm, seen, sum[s]);
      dscore[s] = s < t ? dm * score[s] : 0.0f;
    }
  }
  decays_at_ends(log_decay, segment, decay_in, decay_out);
  // Row r of z becomes the column sums over t >= r, without the columns s >= r, whose decays r is no part of.
  float below[kTile] = {};
  for (int r = kTile - 1; r >= 0; --r) {
    float* __restrict row = z + r * kTile;
    for (int s = 0; s < kTile; ++s) {
      below[s] += row[s];
      row[s] = s < r ? below[s] : 0.0f;
    }
  }
  row_sums(z, crossing);
}

void ssd_scale_rows(const float* from, const float* scale, std::int64_t rows, std::int64_t cols, float* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* __restrict f = from + i * cols;
    float* __restrict o = to + i * cols;
    const float factor = scale[i];
    for (std::int64_t j = 0; j < cols; ++j) o[j] = factor * f[j];
  }
}

void ssd_scale_cols(const float* from, const float* scale, std::int64_t rows, float* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* __restrict f = from + i * kTile;
    float* __restrict o = to + i * kTile;
    for (int j = 0; j < kTile; ++j) o[j] = scale[j] * f[j];
  }
}

void ssd_finish(const float* carried, const float* x, const float* decay_in, float d, std::int64_t cols,
                float* y) {
  for (std::int64_t t = 0; t < kTile; ++t) {
    const float* __restrict c = carried + t * cols;
    const float* __restrict from = x + t * cols;
    float* __restrict to = y + t * cols;
    const float decay = decay_in[t];
    for (std::int64_t j = 0; j < cols; ++j) to[j] = fmaf(d, from[j], fmaf(decay, c[j], to[j]));
  }
}

void ssd_add_and_dot(const float* part, const float* v, std::int64_t cols, float* sum, float* dots) {
  float lanes[kTile * kTile];
  for (std::int64_t t = 0; t < kTile; ++t) {
    float* __restrict lane = lanes + t * kTile;
    for (int j = 0; j < kTile; ++j) lane[j] = 0;
    for (std::int64_t j0 = 0; j0 < cols; j0 += kTile) {
      const float* __restrict p = part + t * cols + j0;
      const float* __restrict w = v + t * cols + j0;
      float* __restrict s = sum + t * cols + j0;
      for (int j = 0; j < kTile; ++j) {
        s[j] += p[j];
        lane[j] = fmaf(p[j], w[j], lane[j]);
      }
    }
  }
  row_sums(lanes, dots);
}

float ssd_dot(const float* a, const float* b, std::int64_t count) {
  float lane[kTile] = {};
  for (std::int64_t i = 0; i < count; i += kTile)
    for (int j = 0; j < kTile; ++j) lane[j] = fmaf(a[i + j], b[i + j], lane[j]);
  float sum = 0;
  for (int j = 0; j < kTile; ++j) sum += lane[j];
  return sum;
}

void ssd_channels_backward(const SsdChannels& g) {
  float dot[kTile] = {}, dot_dy[kTile] = {};
  for (std::int64_t p = 0; p < g.rows; ++p) {
    const float* __restrict x = g.x + p * kTile;
    const float* __restrict dy = g.dy + p * kTile;
    const float* __restrict inside = g.inside + p * kTile;
    const float* __restrict after = g.after + p * kTile;
    float* __restrict dx = g.dx + p * kTile;
    for (int s = 0; s < kTile; ++s) {
      const float grad = fmaf(g.decay_out[s], after[s], inside[s]);
      dot[s] = fmaf(x[s], grad, dot[s]);
      dot_dy[s] = fmaf(x[s], dy[s], dot_dy[s]);
      dx[s] = fmaf(g.dt[s], grad, g.d * dy[s]);
    }
  }
  for (int s = 0; s < kTile; ++s) {
    g.x_dot[s] = dot[s];
    g.x_dot_dy[s] = dot_dy[s];
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
