// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "ops/quantize/quantize_chunks_cuda.cuh"

/// NVFP4 of aligned BF16 rows as they lie. The amax is known when these start.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
/// Blocks on a processor at once; with 64 registers a thread four fit.
constexpr int kBlocks = 4;

/// 1x16 blocks. A thread takes an item at a time: 64 bytes on their way for each of an SM's 1024 threads.
/// Floor, BF16 [16384, 8192]: 268 MB read, 268 MB of values written = 128 us at 4.2 TB/s; codes and scales
/// instead of values: 344 MB = 82 us. Nearest even takes 14 instructions an element for either, 63 us of
/// issue slots; stochastic rounding 19.
template <bool kStochastic, bool kCodes>
__global__ void __launch_bounds__(kThreads, kBlocks) rows_kernel(QuantizeJob job) {
  __shared__ ScaleTable table;
  table.fill(TensorScale::from_amax(begin(job)));
  __syncthreads();
  const RandomKey key = job.random.resolved();
  const RowItems items(job);
  for (std::uint32_t first = blockIdx.x * kThreads; first < items.count; first += gridDim.x * kThreads) {
    // Lanes beyond the end stay for the exchange within their warp, with another's numbers.
    const bool present = first + threadIdx.x < items.count;
    const FourChunks at(job, items, present ? first + threadIdx.x : items.count - 1);
    quantize_chunks<kStochastic, kCodes, 1>(job, table, key, at.row, at.col, at.x, at.rows_left, present);
  }
}

/// 16x16 tiles, nearest even. A warp takes 16 rows x 64 columns, four tiles: lane l the chunk l % 8 of the
/// rows l / 8 + 4 i. Floor as above.
template <bool kCodes>
__global__ void __launch_bounds__(kThreads, kBlocks) squares_kernel(QuantizeJob job) {
  __shared__ ScaleTable table;
  table.fill(TensorScale::from_amax(begin(job)));
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const std::int64_t across = (job.x_cols + 63) / 64, items = job.x_rows / 16 * across;
  constexpr int kWarps = kThreads / kWarp;
  for (std::int64_t w = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; w < items;
       w += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t row = w / across * 16 + lane / 8, col = w % across * 64 + lane % 8 * 8;
    const bool present = col < job.x_cols;
    const bf16* p = static_cast<const bf16*>(job.x) + row * job.x_stride + col;
    uint4 x[4];
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = make_uint4(0, 0, 0, 0);
      if (present) x[i] = *reinterpret_cast<const uint4*>(p + 4 * i * job.x_stride);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) most = larger_halves(most, largest_of_chunk(x[i]));
    // The other half of the block, then the lanes with the other rows.
    for (int other : {1, 8, 16}) most = larger_halves(most, __shfl_xor_sync(0xFFFFFFFFu, most, other));
    const std::uint32_t scale = table.of(most);
    if (!present) continue;
    Destination<kCodes> to(job, row, col);
#pragma unroll
    for (int i = 0; i < 4; ++i, to.down(job, 4)) put_chunk<false>(to, x[i], scale, table, make_uint2(0, 0));
  }
}

bool lies_in_rows(const QuantizeJob& job) {
  return is_fast_nvfp4(job) && !job.transpose && job.spec.rotation == 0 &&
         packs_fit<4>(static_cast<const std::uint8_t*>(job.codes), job.codes_stride);
}

}  // namespace

bool rows_fit(const QuantizeJob& job) {
  return lies_in_rows(job) && job.spec.tile == Tile::Row && row_items(job) < (std::int64_t{1} << 30);
}

void quantize_rows(Stream& stream, const QuantizeJob& job) {
  with_variant(job, [&](auto stochastic, auto codes) {
    launch(stream, "quantize", rows_kernel<stochastic.value, codes.value>,
           looping_blocks(stream, row_items(job), kThreads, kBlocks), kThreads, 0, job);
  });
}

bool squares_fit(const QuantizeJob& job) {
  return lies_in_rows(job) && job.spec.tile == Tile::Square && job.spec.rounding == Rounding::NearestEven &&
         job.x_rows % 16 == 0;
}

void quantize_squares(Stream& stream, const QuantizeJob& job) {
  const std::int64_t items = job.x_rows / 16 * ((job.x_cols + 63) / 64);
  const unsigned blocks = looping_blocks(stream, items, kThreads / kWarp, kBlocks);
  if (job.codes != nullptr)
    launch(stream, "quantize", squares_kernel<true>, blocks, kThreads, 0, job);
  else
    launch(stream, "quantize", squares_kernel<false>, blocks, kThreads, 0, job);
}

}  // namespace nibble::cuda
