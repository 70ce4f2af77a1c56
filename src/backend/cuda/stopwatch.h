// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/cuda_device.h"

namespace nibble::cuda {

/// Time between two points of a device's order of issue, by the device's own clock.
class Stopwatch {
 public:
  explicit Stopwatch(CudaDevice& device) : stream_(device.stream()) {
    cuda_check(cudaEventCreate(&begin_), "making a stopwatch");
    cuda_check(cudaEventCreate(&end_), "making a stopwatch");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() { cuda_check(cudaEventRecord(begin_, stream_), "starting a stopwatch"); }
  /// Seconds since start(); waits for the device.
  double stop() {
    cuda_check(cudaEventRecord(end_, stream_), "stopping a stopwatch");
    cuda_check(cudaEventSynchronize(end_), "waiting for the GPU");
    float milliseconds = 0;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading a stopwatch");
    return 1e-3 * milliseconds;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace nibble::cuda
