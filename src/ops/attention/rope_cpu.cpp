// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/rope.h"
#include "ops/attention/rope_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// One head at one position: features contiguous in memory.
void rotate(const RealView& x, std::int64_t at, const float* cos, const float* sin, float sign,
            float* buffer) {
  const std::int64_t D = x.size(2);
  float* wide = buffer;
  if (x.dtype() == DType::F32) {
    wide = static_cast<float*>(x.data()) + at;
  } else {
    NIBBLE_SIMD_CALL(widen, static_cast<const bf16*>(x.data()) + at, wide, D);
  }
  NIBBLE_SIMD_CALL(rotate_pairs, wide, wide + D / 2, cos, sin, sign, D / 2);
  if (x.dtype() == DType::BF16) NIBBLE_SIMD_CALL(narrow, wide, static_cast<bf16*>(x.data()) + at, D);
}

}  // namespace

void run(Stream& stream, const Rope& r) {
  const std::int64_t H = r.x_THD.size(1), D = r.x_THD.size(2);
  for_tiles(stream, r.x_THD.size(0), kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(D));
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t position = t % r.seq_len;
      for (std::int64_t h = 0; h < H; ++h)
        rotate(r.x_THD, t * r.x_THD.stride(0) + h * r.x_THD.stride(1),
               r.cos_SF.data() + position * r.cos_SF.stride(0),
               r.sin_SF.data() + position * r.sin_SF.stride(0), r.inverse ? -1.0f : 1.0f, buffer.data());
    }
  });
}

}  // namespace nibble::cpu
