// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kernel.cuh"
#include "ops/quantize/dequantize_device_cuda.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread a value. Floor: the codes once and four bytes a value; it serves reports and tests.
__global__ void __launch_bounds__(kThreads) dequantize_kernel(Decoder decoder, float* out, std::int64_t rows,
                                                              std::int64_t cols, std::int64_t stride) {
  for (std::int64_t w = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; w < rows * cols;
       w += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t i = w / cols, j = w % cols;
    out[i * stride + j] = decoder(i, j);
  }
}

}  // namespace

void run(Stream& stream, const Dequantize& d) {
  const std::int64_t rows = d.out_RC.size(0), cols = d.out_RC.size(1);
  const std::int64_t most = std::int64_t{16} * cuda_device(stream).multiprocessors();
  const std::int64_t needed = (rows * cols + kThreads - 1) / kThreads;
  launch(stream, "dequantize", dequantize_kernel, static_cast<unsigned>(needed < most ? needed : most),
         kThreads, 0, Decoder(d), d.out_RC.data(), rows, cols, d.out_RC.stride(0));
}

}  // namespace nibble::cuda
