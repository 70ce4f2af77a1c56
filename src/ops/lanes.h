// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"

/// Sums in a fixed number of lanes. The compiler maps the vector type to whatever registers the SIMD level
/// has; the lanes, and so the order of additions, stay the same.
namespace nibble::lanes {

typedef float F16 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));

inline constexpr std::int64_t kLanes = 16;

/// Pairwise: lane i with lane i + 8, then + 4, + 2, + 1.
NIBBLE_HD float sum(const F16& lanes) {
  float a[kLanes];
  __builtin_memcpy(a, &lanes, sizeof a);
  for (int width = 8; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  return a[0];
}

NIBBLE_HD double sum(const D8& lanes) {
  double a[8];
  __builtin_memcpy(a, &lanes, sizeof a);
  for (int width = 4; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  return a[0];
}

NIBBLE_HD void load(F16& lanes, const float* p) { __builtin_memcpy(&lanes, p, sizeof lanes); }

/// The last n < 16 elements, the other lanes zero.
NIBBLE_HD void load_tail(F16& lanes, const float* p, std::int64_t n) {
  float a[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) a[i] = p[i];
  __builtin_memcpy(&lanes, a, sizeof lanes);
}

}  // namespace nibble::lanes
