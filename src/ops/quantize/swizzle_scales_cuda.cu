// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kernel.cuh"
#include "ops/quantize/swizzle_scales.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

struct SwizzleJob {
  const std::uint8_t* scales;
  std::int64_t rows, cols, stride, tiles_across, words;
};

/// A thread writes four scales of one row, in the order of the result: tile, row % 32, row % 128 / 32.
/// Floor: a byte read and written for every block, 1/16 of what NVFP4's codes take twice.
__global__ void __launch_bounds__(kThreads) swizzle_kernel(SwizzleJob job, std::uint32_t* out) {
  const std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w >= job.words) return;
  const std::int64_t tile = w / 128, in_tile = w % 128;
  const std::int64_t row = tile / job.tiles_across * 128 + in_tile % 4 * 32 + in_tile / 4;
  const std::int64_t col = tile % job.tiles_across * 4;
  std::uint32_t word = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (row < job.rows && col + k < job.cols)
      word |= std::uint32_t{job.scales[row * job.stride + col + k]} << (8 * k);
  out[w] = word;
}

}  // namespace

void run(Stream& stream, const SwizzleScales& s) {
  const SwizzleJob job{s.scales_RB.data(),    s.scales_RB.size(0),           s.scales_RB.size(1),
                       s.scales_RB.stride(0), (s.scales_RB.size(1) + 3) / 4, s.out.numel() / 4};
  launch(stream, "swizzle_scales", swizzle_kernel, blocks_for(job.words, kThreads), kThreads, 0, job,
         reinterpret_cast<std::uint32_t*>(s.out.data()));
}

}  // namespace nibble::cuda
