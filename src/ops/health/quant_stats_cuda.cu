// SPDX-License-Identifier: Apache-2.0
#include "ops/health/quant_stats_cuda.cuh"
#include "ops/quantize/quantize_blocks.h"

/// Sums of a tile are added over the threads of a block in one order, tiles by one block in another fixed
/// order: the same bits twice, on any GPU. The sums stay on the device: nobody waits. Here is the kernel for
/// every layout and format; operands in contiguous rows go through measure_runs.
namespace nibble::cuda {
namespace {

constexpr int kThreads = kMeasureThreads;
constexpr std::int64_t kTileCols = 512;  ///< a multiple of every format's block
/// A strip has at most 32 rows where codes of four bits are counted.
static_assert(32 * kTileCols / kThreads < 256);

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

template <class T>
__device__ void count_element(const MeasureJob<T>& job, const Decoder& decoder, std::int64_t i,
                              std::int64_t j, ElementSums& sums, CodeCounts& codes, unsigned& saturated) {
  const float x = nibble::to_float(job.x[i * job.row_stride + j * job.stride]);
  sums.add(x, job.has_codes ? decoder(i, j) : job.values[i * job.values_stride + j].value());
  if (!job.has_codes) return;
  const std::uint8_t code = job.packed ? decoder.e2m1(i, j).code : decoder.byte(i, j);
  saturated += is_largest(job.spec.format, code) ? 1 : 0;
  if (job.packed) codes.add(code);
}

/// The block whose first element is (i, j); a square one of job.block rows.
template <class T>
__device__ void count_block(const MeasureJob<T>& job, const Decoder& decoder, std::int64_t i, std::int64_t j,
                            BlockCounts& counts, float& block_range) {
  const std::int64_t rows = job.spec.tile == Tile::Square ? min(std::int64_t{job.block}, job.rows - i) : 1;
  const std::int64_t cols = min(std::int64_t{job.block}, job.cols - j);
  float largest = 0, smallest = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const float size = fabsf(nibble::to_float(job.x[(i + r) * job.row_stride + (j + c) * job.stride]));
      largest = larger_magnitude(largest, size);
      smallest = smaller_magnitude(smallest, size);
    }
  counts.add_one(kBlocks);
  if (smallest == 0) {
    counts.add_one(kZeroBlocks);
    return;
  }
  block_range = larger_magnitude(block_range, largest / smallest);
  // Of an FP32 scale its exponent, which E8M0 would store.
  const std::int64_t block = j / job.block;
  const std::uint8_t bits = job.block_scale_bits == 8
                                ? decoder.scale_byte(i, block)
                                : static_cast<std::uint8_t>(float_bits(decoder.wide_scale(i, block)) >> 23);
  counts.count_scale(job.spec.format, bits);
}

/// A block a tile of job.strip rows x kTileCols columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(MeasureJob<T> job, Decoder decoder, Partial* partials) {
  __shared__ BlockCounts counts;
  counts.clear();
  __syncthreads();
  const std::int64_t i0 = blockIdx.x / job.across * job.strip, j0 = blockIdx.x % job.across * kTileCols;
  const auto rows = static_cast<unsigned>(min(job.strip, job.rows - i0));
  const auto cols = static_cast<unsigned>(min(kTileCols, job.cols - j0));
  ElementSums sums;
  CodeCounts codes;
  unsigned saturated = 0;
  float block_range = 0;
  for (unsigned w = threadIdx.x; w < rows * cols; w += kThreads)
    count_element(job, decoder, i0 + w / cols, j0 + w % cols, sums, codes, saturated);
  if (job.block != 0) {
    const unsigned step = job.spec.tile == Tile::Square ? job.block : 1;
    const unsigned blocks = (cols + job.block - 1) / job.block;
    for (unsigned w = threadIdx.x; w < (rows + step - 1) / step * blocks; w += kThreads)
      count_block(job, decoder, i0 + w / blocks * step, j0 + w % blocks * job.block, counts, block_range);
  }
  __syncwarp();
  counts.add_codes(codes);
  counts.add_of_warp(kSaturated, saturated);
  counts.add_elements(sums);
  write_tile(counts, sums.sums, sums.amin, block_range, partials[blockIdx.x]);
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

constexpr int kAddThreads = 1024;

/// One block: the sum of `tiles` partials, merged into *out. A warp one of the numbers, in a fixed order.
__global__ void __launch_bounds__(kAddThreads)
    add_kernel(const Partial* partials, std::int64_t tiles, std::int64_t count, const float* amax,
               const float* scale, QuantStats* out) {
  __shared__ Partial total;
  const int lane = threadIdx.x % kWarp;
  for (int k = threadIdx.x / kWarp; k < kCounts + kSums + 2; k += kAddThreads / kWarp) {
    if (k < kCounts) {
      long long mine = 0;
#pragma unroll 8
      for (std::int64_t t = lane; t < tiles; t += kWarp) mine += partials[t].counts[k];
      mine = warp_sum(mine);
      if (lane == 0) total.counts[k] = mine;
    } else if (k < kCounts + kSums) {
      double mine = 0;
#pragma unroll 8
      for (std::int64_t t = lane; t < tiles; t += kWarp) mine += partials[t].sums[k - kCounts];
      mine = warp_sum(mine);
      if (lane == 0) total.sums[k - kCounts] = mine;
    } else if (k == kCounts + kSums) {
      float most = 0;
      for (std::int64_t t = lane; t < tiles; t += kWarp)
        most = larger_magnitude(most, partials[t].block_range);
      most = warp_max(most);
      if (lane == 0) total.block_range = most;
    } else {
      float least = INFINITY;
      for (std::int64_t t = lane; t < tiles; t += kWarp)
        if (partials[t].amin != 0) least = fminf(least, partials[t].amin);
      least = -warp_max(-least);
      if (lane == 0) total.amin = least == INFINITY ? 0 : least;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) out->merge(stats_of(total, count, amax, scale));
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
  const auto add = [&](const Partial* partials, std::int64_t tiles) {
    launch(stream, "measure_quant", add_kernel, 1, kAddThreads, 0, partials, tiles, m.x_RC.numel(), m.amax,
           m.scale, m.out);
  };
  if (runs_fit(m)) {
    const std::int64_t tiles = tiles_of_runs(m);
    Partial* partials = stream.scratch().take<Partial>(tiles).data();
    measure_runs(stream, m, partials);
    return add(partials, tiles);
  }
  with_type(m.x_RC, [&](auto x_RC) {
    const auto job = job_of(m, x_RC);
    Partial* partials = stream.scratch().take<Partial>(job.tiles).data();
    launch(stream, "measure_quant",
           measure_kernel<std::remove_const_t<std::remove_pointer_t<decltype(job.x)>>>,
           blocks_for(job.tiles, 1), kThreads, 0, job, Decoder(decoding_of(m, {})), partials);
    add(partials, job.tiles);
  });
}

}  // namespace nibble::cuda
