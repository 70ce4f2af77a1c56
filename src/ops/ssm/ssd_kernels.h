// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

namespace nibble::cpu {

/// Tokens of a tile of the scan. A chunk is worked through in tiles of this size, whatever its length: the
/// work inside a tile grows with its square, that between tiles does not depend on it, and the state is read
/// and written once a tile. Tokens beyond the sequence have dt = 0 and x = 0, so they change nothing.
inline constexpr int kSsdTile = 32;

/// How dt of one head is made of what the projection gives.
struct SsdStepRule {
  float bias, a, dt_min, dt_max;
};

/// One head's step sizes in a tile, [kSsdTile] each.
struct SsdSteps {
  float* dt;         ///< after softplus and the limits; 0 beyond `used`
  float* slope;      ///< d dt / d dt_raw: 0 where limited and beyond `used`
  float* log_decay;  ///< dt a
};

/// The gradients of one head's elementwise part; [P rows, kSsdTile] where a matrix, tokens along the lanes.
struct SsdChannels {
  std::int64_t rows;
  const float *x, *dy;  ///< transposed tiles
  const float* inside;  ///< d(dt x) from the outputs of the tile
  const float* after;   ///< d(dt x) from the state after the tile, before the decay up to there
  const float *dt, *decay_out;
  float d;
  float* dx;        ///< out
  float* x_dot;     ///< out, [kSsdTile]: sum over the channels of x d(dt x)
  float* x_dot_dy;  ///< out, [kSsdTile]
};

/// [kSsdTile, kSsdTile] matrices are indexed [t, s], and what is at s > t is zero or ignored.
#define NIBBLE_SSD_KERNELS(level)                                                                          \
  namespace level {                                                                                        \
  void ssd_steps(const float* raw, int used, const SsdStepRule&, const SsdSteps&);                         \
  /* decay_in[t]: from before the tile to t; decay_out[s]: from s to the tile's end. */                    \
  void ssd_decays(const float* log_decay, float* decay_in, float* decay_out);                              \
  /* m = k * L with L[t, s] = exp(sum of log_decay over s < r <= t); the decays as above. */               \
  void ssd_scores(const float* log_decay, const float* k, float* m, float* decay_in, float* decay_out);    \
  /* The same, and dk += z * L, and crossing[r] = sum over t >= r, s < r of z m; z is overwritten. */      \
  void ssd_scores_backward(const float* log_decay, const float* k, float* z, float* m, float* dk,          \
                           float* crossing, float* decay_in, float* decay_out);                            \
  /* to[i, j] = scale[i] from[i, j] */                                                                     \
  void ssd_scale_rows(const float* from, const float* scale, std::int64_t rows, std::int64_t cols,         \
                      float* to);                                                                          \
  /* to[i, j] = scale[j] from[i, j], kSsdTile columns */                                                   \
  void ssd_scale_cols(const float* from, const float* scale, std::int64_t rows, float* to);                \
  /* y = decay_in[t] carried + y + d x */                                                                  \
  void ssd_finish(const float* carried, const float* x, const float* decay_in, float d, std::int64_t cols, \
                  float* y);                                                                               \
  /* sum += part; dots[t] = sum over columns of part v, kSsdTile rows; cols a multiple of kSsdTile. */     \
  void ssd_add_and_dot(const float* part, const float* v, std::int64_t cols, float* sum, float* dots);     \
  float ssd_dot(const float* a, const float* b, std::int64_t count);                                       \
  void ssd_channels_backward(const SsdChannels&);                                                          \
  }
NIBBLE_FOR_EACH_SIMD(NIBBLE_SSD_KERNELS)
#undef NIBBLE_SSD_KERNELS

}  // namespace nibble::cpu
