// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "backend/device.h"
#include "ops/rows_kernels.h"

/// How the cpu ops walk through matrices: tiles of rows on the thread pool, each row widened to FP32 if it is
/// not already. A tile's rows stay in the first cache, so the extra pass costs little and every kernel exists
/// once, in FP32.
namespace nibble::cpu {

/// Rows a tile has. Part of the meaning of partial sums: never derived from the thread count.
inline constexpr std::int64_t kTileRows = 32;

inline std::int64_t tiles_of(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile; }

/// Calls f(tile, begin, end) for every tile of `size` consecutive numbers below n.
template <class F>
void for_tiles(Stream& stream, std::int64_t n, std::int64_t size, F&& f) {
  stream.pool().parallel_for(
      tiles_of(n, size), [&](std::int64_t tile) { f(tile, tile * size, std::min(n, (tile + 1) * size)); });
}

/// Row t of a matrix as FP32: its own memory, or `buffer` filled with the widened row.
inline const float* read_row(const ConstRealView& x, std::int64_t t, float* buffer) {
  const std::int64_t at = t * x.stride(0);
  if (x.dtype() == DType::F32) return static_cast<const float*>(x.data()) + at;
  NIBBLE_SIMD_CALL(widen, static_cast<const bf16*>(x.data()) + at, buffer, x.size(1));
  return buffer;
}

/// Where row t is computed: its own memory when FP32, else `buffer`, which finish_row rounds into place.
inline float* begin_row(const RealView& y, std::int64_t t, float* buffer) {
  return y.dtype() == DType::F32 ? static_cast<float*>(y.data()) + t * y.stride(0) : buffer;
}
inline void finish_row(const RealView& y, std::int64_t t, const float* buffer) {
  if (y.dtype() == DType::BF16)
    NIBBLE_SIMD_CALL(narrow, buffer, static_cast<bf16*>(y.data()) + t * y.stride(0), y.size(1));
}

/// A row computed elsewhere, in the type of y.
inline void write_row(const RealView& y, std::int64_t t, const float* row) {
  if (y.dtype() == DType::F32)
    std::copy(row, row + y.size(1), begin_row(y, t, nullptr));
  else
    finish_row(y, t, row);
}

/// The largest magnitude of what an op writes, where the caller asked for it.
class AmaxPartials {
 public:
  AmaxPartials(Stream& stream, std::int64_t rows, float* amax)
      : amax_(amax),
        scope_(stream.scratch()),
        bits_(stream.scratch().take<std::uint32_t>(amax == nullptr ? 0 : tiles_of(rows, kTileRows))) {
    std::fill(bits_.data(), bits_.data() + bits_.size(0), 0u);
  }

  /// n numbers of a tile, before they are rounded.
  void note(std::int64_t tile, const float* x, std::int64_t n) const {
    if (amax_ != nullptr) bits_(tile) = std::max(bits_(tile), NIBBLE_SIMD_CALL(magnitude_bits_of, x, n));
  }
  /// Rounds as the output was: the largest of rounded values is the rounded largest value.
  void finish(DType written) const {
    if (amax_ == nullptr) return;
    std::uint32_t most = 0;
    for (std::int64_t tile = 0; tile < bits_.size(0); ++tile) most = std::max(most, bits_(tile));
    const float largest = bits_float(most);
    *amax_ = written == DType::BF16 ? bf16::nearest(largest).value() : largest;
  }

 private:
  float* amax_;
  ArenaScope scope_;
  View<std::uint32_t> bits_;
};

/// Partial sums of columns, one row a tile, added to a vector in tile order when all tiles are done.
class ColumnPartials {
 public:
  ColumnPartials(Stream& stream, std::int64_t rows, std::int64_t columns)
      : scope_(stream.scratch()),
        partial_(stream.scratch().take<float>(tiles_of(rows, kTileRows), columns)) {}

  /// The zeroed partial sums of a tile.
  float* begin(std::int64_t tile) {
    float* p = partial_.data() + tile * partial_.stride(0);
    std::fill(p, p + partial_.size(1), 0.0f);
    return p;
  }
  void add_to(const View<float>& out) const {
    std::vector<double> sum(static_cast<std::size_t>(partial_.size(1)));
    for (std::int64_t tile = 0; tile < partial_.size(0); ++tile)
      NIBBLE_SIMD_CALL(add_to_double, sum.data(), partial_.data() + tile * partial_.stride(0),
                       partial_.size(1));
    for (std::int64_t n = 0; n < partial_.size(1); ++n)
      out(n) = static_cast<float>(out(n) + sum[static_cast<std::size_t>(n)]);
  }

 private:
  ArenaScope scope_;
  View<float> partial_;
};

}  // namespace nibble::cpu
