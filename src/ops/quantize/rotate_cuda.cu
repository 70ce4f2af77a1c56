// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kernel.cuh"
#include "ops/quantize/rotate.h"
#include "quant/hadamard.h"

/// For telemetry, a thread a block of 16: the quantisers rotate in their own registers.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;

struct RotateJob {
  bool transpose;
  std::uint16_t sign_mask;
  std::int64_t rows, blocks, filled;  ///< of the result; values of a row before the padding
  std::int64_t row_stride, stride;    ///< of x in the result's axes
  bf16* out;
  std::int64_t out_stride;
};

/// Floor: x once, the result once.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateJob job, const T* x) {
  const std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w >= job.rows * job.blocks) return;
  // Neighbouring threads read neighbouring numbers of the source.
  const std::int64_t i = job.transpose ? w % job.rows : w / job.blocks;
  const std::int64_t j = (job.transpose ? w / job.rows : w % job.blocks) * 16;
  float block[16];
#pragma unroll
  for (int k = 0; k < 16; ++k)
    block[k] = j + k < job.filled ? nibble::to_float(x[i * job.row_stride + (j + k) * job.stride]) : 0.0f;
  rotate_block(block, job.sign_mask);
#pragma unroll
  for (int k = 0; k < 16; ++k) job.out[i * job.out_stride + j + k] = bf16::nearest(block[k]);
}

}  // namespace

void run(Stream& stream, const Rotate& r) {
  const Layout& x = r.x_RC.layout();
  RotateJob job{};
  job.transpose = r.transpose;
  job.sign_mask = r.sign_mask;
  job.rows = r.out.size(0);
  job.blocks = r.out.size(1) / 16;
  job.filled = x.size[r.transpose ? 0 : 1];
  job.row_stride = x.stride[r.transpose ? 1 : 0];
  job.stride = x.stride[r.transpose ? 0 : 1];
  job.out = r.out.data();
  job.out_stride = r.out.stride(0);
  with_type(r.x_RC, [&](auto x_RC) {
    launch(stream, "rotate",
           rotate_kernel<std::remove_const_t<std::remove_reference_t<decltype(*x_RC.data())>>>,
           blocks_for(job.rows * job.blocks, kThreads), kThreads, 0, job, x_RC.data());
  });
}

}  // namespace nibble::cuda
