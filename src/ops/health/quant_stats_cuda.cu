// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>

#include "backend/cuda/kernel.cuh"
#include "numeric/e2m3.h"
#include "ops/health/quant_stats.h"
#include "ops/health/quant_stats_rows.h"
#include "ops/quantize/dequantize_device_cuda.cuh"
#include "ops/quantize/quantize_blocks.h"

/// Sums of a tile are added over the threads of a block in one order, tiles by one block in another fixed
/// order: the same bits twice, on any GPU. It runs on a few sampled steps; x and the codes are read once for
/// the sums and once for the blocks. The sums stay on the device: nobody waits.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kTileCols = 512;  ///< a multiple of every format's block

/// QuantStats as numbers that are all added alike.
constexpr int kHistogram = 8, kCodes = kHistogram + 16, kCounts = kCodes + 16, kSums = 7;
enum Count { kNonzero, kFlushed, kSaturated, kBlocks, kZeroBlocks, kScaleMax, kScaleSubnormal, kScaleZero };
enum Sum { kX2, kE2, kAbs, kE, kXq, kQ2, kX };
struct Partial {
  long long counts[kCounts];
  double sums[kSums];
  float amin, block_range;
};

/// How often a thread met each code of four bits, a byte a code: a strip of such a format has at most 32
/// rows.
static_assert(32 * kTileCols / kThreads < 256);
struct CodeCounts {
  unsigned long long low = 0, high = 0;
  __device__ void add(std::uint8_t code) { (code & 8 ? high : low) += 1ull << (8 * (code & 7)); }
  __device__ void add_to(Partial& p) const {
#pragma unroll
    for (int c = 0; c < 16; ++c)
      p.counts[kCodes + c] += static_cast<long long>(((c & 8 ? high : low) >> (8 * (c & 7))) & 255);
  }
};

template <class T>
struct MeasureJob {
  const T* x;
  std::int64_t rows, cols, row_stride, stride;  ///< x may be a transposed view
  const bf16* values;
  std::int64_t values_stride;
  QuantSpec spec;
  bool packed, has_codes;
  int block, block_scale_bits;
  std::int64_t strip, across, tiles;
};

__device__ bool is_largest(Format format, std::uint8_t code) {
  switch (format) {
    case Format::Nvfp4:
    case Format::Mxfp4:
      return (code & 7) == 7;
    case Format::Mxfp6E2M3:
    case Format::Mxfp6E3M2:
      return (code & 0x1F) == E2M3::kMaxBits;
    case Format::Mxfp8E5M2:
    case Format::Fp8E5M2:
      return (code & 0x7F) == E5M2::kMaxBits;
    default:
      return (code & 0x7F) == E4M3::kMaxBits;
  }
}

template <class T>
__device__ void count_element(const MeasureJob<T>& job, const Decoder& decoder, std::int64_t i,
                              std::int64_t j, Partial& p, CodeCounts& codes) {
  const float x = nibble::to_float(job.x[i * job.row_stride + j * job.stride]);
  const float q = job.has_codes ? decoder(i, j) : job.values[i * job.values_stride + j].value();
  const double xd = x, qd = q, e = qd - xd;
  p.counts[kNonzero] += x != 0.0f ? 1 : 0;
  p.counts[kFlushed] += x != 0.0f && q == 0.0f ? 1 : 0;
  p.sums[kX2] += xd * xd;
  p.sums[kE2] += e * e;
  p.sums[kAbs] += fabs(xd);
  p.sums[kE] += x < 0.0f ? -e : e;
  p.sums[kXq] += xd * qd;
  p.sums[kQ2] += qd * qd;
  p.sums[kX] += xd;
  p.amin = smaller_magnitude(p.amin, fabsf(x));
  if (!job.has_codes) return;
  const std::uint8_t code = job.packed ? decoder.e2m1(i, j).code : decoder.byte(i, j);
  p.counts[kSaturated] += is_largest(job.spec.format, code) ? 1 : 0;
  if (job.packed) codes.add(code);
}

/// Bin of a scale, for the histogram in local memory: added one by one, since an index known only at run time
/// would spill it.
__device__ void add_to_histogram(Partial& p, int bin) {
#pragma unroll
  for (int b = 0; b < 16; ++b) p.counts[kHistogram + b] += b == bin ? 1 : 0;
}

__device__ void count_scale(Format format, std::uint8_t bits, Partial& p) {
  if (format == Format::Nvfp4) {
    p.counts[kScaleMax] += bits == E4M3::kMaxBits ? 1 : 0;
    p.counts[kScaleSubnormal] += bits > 0 && bits < 8 ? 1 : 0;
    p.counts[kScaleZero] += bits == 0 ? 1 : 0;
    add_to_histogram(p, (bits & 0x7F) >> 3);
  } else {
    p.counts[kScaleMax] += bits == 0xFE ? 1 : 0;
    p.counts[kScaleSubnormal] += bits < 127 - 6 ? 1 : 0;
    add_to_histogram(p, min(max(bits - 127 + 7, 0), 15));
  }
}

/// The block whose first element is (i, j); a square one of job.block rows.
template <class T>
__device__ void count_block(const MeasureJob<T>& job, const Decoder& decoder, std::int64_t i, std::int64_t j,
                            Partial& p) {
  const std::int64_t rows = job.spec.tile == Tile::Square ? min(std::int64_t{job.block}, job.rows - i) : 1;
  const std::int64_t cols = min(std::int64_t{job.block}, job.cols - j);
  float largest = 0, smallest = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const float size = fabsf(nibble::to_float(job.x[(i + r) * job.row_stride + (j + c) * job.stride]));
      largest = larger_magnitude(largest, size);
      smallest = smaller_magnitude(smallest, size);
    }
  p.counts[kBlocks] += 1;
  p.counts[kZeroBlocks] += smallest == 0 ? 1 : 0;
  if (smallest == 0) return;
  p.block_range = larger_magnitude(p.block_range, largest / smallest);
  // Of an FP32 scale its exponent, which E8M0 would store.
  const std::int64_t block = j / job.block;
  const std::uint8_t bits = job.block_scale_bits == 8
                                ? decoder.scale_byte(i, block)
                                : static_cast<std::uint8_t>(float_bits(decoder.wide_scale(i, block)) >> 23);
  count_scale(job.spec.format, bits, p);
}

/// The smallest magnitude that is not zero, 0 where there is none; on every thread.
__device__ float block_smallest(float x) {
  const float none = INFINITY;
  const float negated = block_max<kThreads>(x == 0 ? -none : -x);
  return negated == -none ? 0 : -negated;
}

/// Adds the threads' partials in a fixed order; thread 0 writes.
__device__ void write_sum(const Partial& p, Partial& out) {
#pragma unroll
  for (int k = 0; k < kCounts; ++k) {
    const long long sum = block_sum<kThreads>(p.counts[k]);
    if (threadIdx.x == 0) out.counts[k] = sum;
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    const double sum = block_sum<kThreads>(p.sums[k]);
    if (threadIdx.x == 0) out.sums[k] = sum;
  }
  const float amin = block_smallest(p.amin), range = block_max<kThreads>(p.block_range);
  if (threadIdx.x == 0) {
    out.amin = amin;
    out.block_range = range;
  }
}

/// A block a tile of job.strip rows x kTileCols columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(MeasureJob<T> job, Decoder decoder, Partial* partials) {
  const std::int64_t i0 = blockIdx.x / job.across * job.strip, j0 = blockIdx.x % job.across * kTileCols;
  const std::int64_t rows = min(job.strip, job.rows - i0), cols = min(kTileCols, job.cols - j0);
  Partial p{};
  CodeCounts codes;
  for (std::int64_t w = threadIdx.x; w < rows * cols; w += kThreads)
    count_element(job, decoder, i0 + w / cols, j0 + w % cols, p, codes);
  codes.add_to(p);
  if (job.block != 0) {
    const std::int64_t step = job.spec.tile == Tile::Square ? job.block : 1;
    const std::int64_t blocks = (cols + job.block - 1) / job.block;
    for (std::int64_t w = threadIdx.x; w < (rows + step - 1) / step * blocks; w += kThreads)
      count_block(job, decoder, i0 + w / blocks * step, j0 + w % blocks * job.block, p);
  }
  write_sum(p, partials[blockIdx.x]);
}

__device__ QuantStats stats_of(const Partial& p, std::int64_t count, const float* amax, const float* scale) {
  QuantStats s;
  s.count = count;
  s.nonzero = p.counts[kNonzero];
  s.flushed = p.counts[kFlushed];
  s.saturated = p.counts[kSaturated];
  s.blocks = p.counts[kBlocks];
  s.zero_blocks = p.counts[kZeroBlocks];
  s.scale_max = p.counts[kScaleMax];
  s.scale_subnormal = p.counts[kScaleSubnormal];
  s.scale_zero = p.counts[kScaleZero];
  for (int b = 0; b < 16; ++b) s.scale_histogram[b] = p.counts[kHistogram + b];
  for (int c = 0; c < 16; ++c) s.code_histogram[c] = p.counts[kCodes + c];
  s.sum_x2 = p.sums[kX2];
  s.sum_e2 = p.sums[kE2];
  s.sum_abs = p.sums[kAbs];
  s.sum_e = p.sums[kE];
  s.sum_xq = p.sums[kXq];
  s.sum_q2 = p.sums[kQ2];
  s.sum_x = p.sums[kX];
  s.amin = p.amin;
  s.block_range = p.block_range;
  s.amax = *amax;
  if (scale != nullptr) s.scale_inv_min = s.scale_inv_max = *scale;
  return s;
}

/// One block: the sum of `tiles` partials, merged into *out; `total` is memory for it.
__global__ void __launch_bounds__(kThreads)
    add_kernel(const Partial* partials, std::int64_t tiles, Partial* total, std::int64_t count,
               const float* amax, const float* scale, QuantStats* out) {
  Partial p{};
  for (std::int64_t t = threadIdx.x; t < tiles; t += kThreads) {
#pragma unroll
    for (int k = 0; k < kCounts; ++k) p.counts[k] += partials[t].counts[k];
#pragma unroll
    for (int k = 0; k < kSums; ++k) p.sums[k] += partials[t].sums[k];
    p.amin = smaller_magnitude(p.amin, partials[t].amin);
    p.block_range = larger_magnitude(p.block_range, partials[t].block_range);
  }
  write_sum(p, *total);
  if (threadIdx.x == 0) out->merge(stats_of(*total, count, amax, scale));
}

template <class T>
MeasureJob<T> job_of(const MeasureQuant& m, const View<const T>& x_RC) {
  const FormatInfo& format = info(m.spec.format);
  MeasureJob<T> job{};
  job.x = x_RC.data();
  job.rows = x_RC.size(0);
  job.cols = x_RC.size(1);
  job.row_stride = x_RC.stride(0);
  job.stride = x_RC.stride(1);
  job.values = m.values.data();
  job.values_stride = m.values.empty() ? 0 : m.values.stride(0);
  job.spec = m.spec;
  job.packed = format.element_bits == 4;
  job.has_codes = is_quantized(m.spec.format);
  job.block = format.block;
  job.block_scale_bits = format.block_scale_bits;
  job.strip = rows_of_a_strip(m.spec);
  job.across = (job.cols + kTileCols - 1) / kTileCols;
  job.tiles = (job.rows + job.strip - 1) / job.strip * job.across;
  return job;
}

}  // namespace

void run(Stream& stream, const MeasureQuant& m) {
  const ArenaScope scope(stream.scratch());
  const std::int64_t rows = m.x_RC.size(0), cols = m.x_RC.size(1);
  with_type(m.x_RC, [&](auto x_RC) {
    const auto job = job_of(m, x_RC);
    Partial* partials = stream.scratch().take<Partial>(job.tiles + 1).data();
    launch(stream, "measure_quant",
           measure_kernel<std::remove_const_t<std::remove_pointer_t<decltype(job.x)>>>,
           blocks_for(job.tiles, 1), kThreads, 0, job, Decoder(decoding_of(m, {})), partials);
    launch(stream, "measure_quant", add_kernel, 1, kThreads, 0, partials, job.tiles, partials + job.tiles,
           rows * cols, m.amax, m.scale, m.out);
  });
}

}  // namespace nibble::cuda
