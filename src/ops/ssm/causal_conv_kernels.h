// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

namespace nibble::cpu {

/// Channels are worked on in strips of this width, so that a strip of a sequence stays in the first caches.
inline constexpr std::int64_t kConvStrip = 64;

/// One strip of kConvStrip channels of `rows` consecutive tokens, FP32.
struct ConvStrip {
  std::int64_t rows, width;  ///< width = K, the number of taps
  const float* x;            ///< [width - 1 + rows, kConvStrip]: row i + k meets tap k for token i
  const float* w;            ///< [width, kConvStrip]
  const float* b;            ///< [kConvStrip]
};

/// What backward of a strip adds to. Tokens are visited in order.
struct ConvStripGradients {
  const float* dy;  ///< [rows, kConvStrip]
  float* dx;        ///< [width - 1 + rows, kConvStrip], laid out as x; +=
  float* dw;        ///< [width, kConvStrip]; +=
  float* db;        ///< [kConvStrip]; +=
};

#define NIBBLE_CAUSAL_CONV_KERNELS(level)                                       \
  namespace level {                                                             \
  void causal_conv_strip(const ConvStrip&, float* y);                           \
  void causal_conv_backward_strip(const ConvStrip&, const ConvStripGradients&); \
  }
NIBBLE_FOR_EACH_SIMD(NIBBLE_CAUSAL_CONV_KERNELS)
#undef NIBBLE_CAUSAL_CONV_KERNELS

}  // namespace nibble::cpu
