// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "backend/cuda/kernel.cuh"
#include "ops/health/quant_stats.h"
#include "ops/health/quant_stats_rows.h"
#include "ops/quantize/dequantize_device_cuda.cuh"

/// What the kernels of measure_quant share: a block's sums of one tile, and how a code and a scale are
/// counted. Device code only.
namespace nibble::cuda {

inline constexpr int kMeasureThreads = 256;

/// QuantStats as numbers that are all added alike.
inline constexpr int kHistogram = 8, kCodes = kHistogram + 16, kCounts = kCodes + 16, kSums = 7;
enum Count { kNonzero, kFlushed, kSaturated, kBlocks, kZeroBlocks, kScaleMax, kScaleSubnormal, kScaleZero };
enum Sum { kX2, kE2, kAbs, kE, kXq, kQ2, kX };
struct Partial {
  long long counts[kCounts];
  double sums[kSums];
  float amin, block_range;
};

/// What a thread adds up about its elements.
struct ElementSums {
  double sums[kSums] = {};
  int nonzero = 0, flushed = 0;
  float amin = 0;
  __device__ __forceinline__ void add(float x, float q) {
    const double xd = x, qd = q, e = qd - xd;
    nonzero += x != 0.0f ? 1 : 0;
    flushed += x != 0.0f && q == 0.0f ? 1 : 0;
    sums[kX2] += xd * xd;
    sums[kE2] += e * e;
    sums[kAbs] += fabs(xd);
    sums[kE] += x < 0.0f ? -e : e;
    sums[kXq] += xd * qd;
    sums[kQ2] += qd * qd;
    sums[kX] += xd;
    amin = smaller_magnitude(amin, fabsf(x));
  }
};

/// How often a thread met each code of four bits, a byte a code: for at most 255 elements.
struct CodeCounts {
  unsigned long long low = 0, high = 0;
  __device__ __forceinline__ void add(std::uint32_t code) {
    (code & 8 ? high : low) += 1ull << (8 * (code & 7));
  }
  __device__ __forceinline__ unsigned of(int code) const {
    return static_cast<unsigned>((code & 8 ? high : low) >> (8 * (code & 7))) & 255;
  }
};

/// Counts of a block in shared memory. Integers: in whatever order they are added, the sum is the same.
struct BlockCounts {
  unsigned counts[kCounts];
  __device__ void clear() {
    for (int k = threadIdx.x; k < kCounts; k += kMeasureThreads) counts[k] = 0;
  }
  __device__ __forceinline__ void add_one(int k) { atomicAdd(&counts[k], 1u); }
  /// Every lane's n; the whole warp calls it.
  __device__ __forceinline__ void add_of_warp(int k, unsigned n) {
    const unsigned sum = __reduce_add_sync(0xFFFFFFFFu, n);
    if (threadIdx.x % kWarp == 0 && sum != 0) atomicAdd(&counts[k], sum);
  }
  __device__ void add_codes(const CodeCounts& codes) {
#pragma unroll
    for (int c = 0; c < 16; ++c) add_of_warp(kCodes + c, codes.of(c));
  }
  __device__ void add_elements(const ElementSums& e) {
    add_of_warp(kNonzero, e.nonzero);
    add_of_warp(kFlushed, e.flushed);
  }
  __device__ void count_scale(Format format, std::uint8_t bits) {
    if (format == Format::Nvfp4) {
      if (bits == E4M3::kMaxBits) add_one(kScaleMax);
      if (bits > 0 && bits < 8) add_one(kScaleSubnormal);
      if (bits == 0) add_one(kScaleZero);
      add_one(kHistogram + ((bits & 0x7F) >> 3));
    } else {
      if (bits == 0xFE) add_one(kScaleMax);
      if (bits < 127 - 6) add_one(kScaleSubnormal);
      add_one(kHistogram + min(max(bits - 127 + 7, 0), 15));
    }
  }
};

/// The smallest magnitude that is not zero, 0 where there is none; on every thread.
__device__ inline float block_smallest(float x) {
  const float none = INFINITY;
  const float negated = block_max<kMeasureThreads>(x == 0 ? -none : -x);
  return negated == -none ? 0 : -negated;
}

/// Writes the block's sums: counts from shared memory, the threads' sums in a fixed order.
__device__ inline void write_tile(const BlockCounts& counts, const double (&sums)[kSums], float amin,
                                  float block_range, Partial& out) {
  __syncthreads();
  for (int k = threadIdx.x; k < kCounts; k += kMeasureThreads) out.counts[k] = counts.counts[k];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    const double sum = block_sum<kMeasureThreads>(sums[k]);
    if (threadIdx.x == 0) out.sums[k] = sum;
  }
  const float smallest = block_smallest(amin), range = block_max<kMeasureThreads>(block_range);
  if (threadIdx.x == 0) {
    out.amin = smallest;
    out.block_range = range;
  }
}

/// Whether `m` is a matrix in contiguous rows whose blocks (or, without blocks, runs of 16) are whole and
/// aligned, and so goes the fast way.
bool runs_fit(const MeasureQuant& m);
/// Tiles that measure_runs makes of it, and their sums.
std::int64_t tiles_of_runs(const MeasureQuant& m);
void measure_runs(Stream& stream, const MeasureQuant& m, Partial* partials);

}  // namespace nibble::cuda
