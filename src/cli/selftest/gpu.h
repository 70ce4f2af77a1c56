// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "backend/device.h"
#include "ops/gemm/native.h"
#include "ops/op.h"

namespace nibble {

/// The card as nibble sees it.
struct Gpu {
  std::string name;            ///< "NVIDIA H200"
  int compute_capability = 0;  ///< 90
  int multiprocessors = 0;
  std::string driver;                      ///< "580.65.06"; empty where the system does not say
  std::string driver_cuda, runtime_cuda;   ///< newest CUDA that the driver runs, and the one built in: "13.0"
  std::int64_t memory = 0, available = 0;  ///< bytes
  std::string cublaslt;                    ///< "13.0.2"
  std::string attention;                   ///< "cudnn 9.19.0", or "own (why)": of a layer of training in BF16
  NativeGemm native;

  /// "9.0"
  std::string capability() const {
    return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
  }
};

/// Figures by the card's clock that show at a glance whether it runs as it should.
struct GpuRates {
  double copy_bytes_per_s = 0;  ///< read and written, of a large copy in its memory
  double bf16_flops_per_s = 0;  ///< of one large product, FP32 sums
  double fp8_flops_per_s = 0;   ///< of codes; 0: the card has no such product
};

namespace cuda {

/// The stream's card. Throws Error{Runtime} with what CUDA says when the card does not answer.
Gpu describe_gpu(Stream& stream);
/// About half a second. Throws Error{Runtime} when the card lacks the memory: about a GiB.
GpuRates measure_gpu(Stream& stream);

/// "NVIDIA H200, driver 580.65.06": what a report says of the card.
std::string gpu_name();
/// 90 of a Hopper. Throws Error{Runtime} where there is no card.
int gpu_capability();

/// Whether this build has the backend.
#ifdef NIBBLE_WITH_CUDA
inline constexpr bool kBuilt = true;
#else
inline constexpr bool kBuilt = false;
#endif
/// Null in a build without it, where no stream of kind Cuda exists.
inline constexpr auto kDescribeGpu = static_cast<Gpu (*)(Stream&)>(NIBBLE_CUDA(describe_gpu));
inline constexpr auto kMeasureGpu = static_cast<GpuRates (*)(Stream&)>(NIBBLE_CUDA(measure_gpu));
inline constexpr auto kGpuCapability = static_cast<int (*)()>(NIBBLE_CUDA(gpu_capability));
inline constexpr auto kGpuName = static_cast<std::string (*)()>(NIBBLE_CUDA(gpu_name));

}  // namespace cuda
}  // namespace nibble
