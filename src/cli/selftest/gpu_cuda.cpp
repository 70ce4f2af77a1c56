// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>

#include "backend/cuda/stopwatch.h"
#include "cli/selftest/gpu.h"
#include "ops/attention/attention_cuda.h"
#include "ops/gemm/gemm_bench.h"

namespace nibble::cuda {
namespace {

/// CUDA writes 13.0 as 13000.
std::string cuda_version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

/// The driver's own version. Its line reads "NVRM version: NVIDIA UNIX ... Module ...  580.65.06  ...".
std::string driver_version() {
  std::ifstream in("/proc/driver/nvidia/version");
  for (std::string word; in >> word;)
    if (std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos) return word;
  return "";
}

cudaDeviceProp properties_of_card() {
  int ordinal = 0;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDevice(&ordinal), "asking which GPU is used");
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is");
  return properties;
}

/// Asked with the shape of a layer, since cuDNN may be there and refuse.
std::string attention_of_training(Stream& stream) {
  constexpr std::int64_t kTokens = 1024, kHeads = 8, kGroups = 4, kWidth = 128;
  const ArenaScope scope(stream.scratch());
  const RealView q = stream.scratch().take_real(DType::BF16, kTokens, kHeads, kWidth),
                 k = stream.scratch().take_real(DType::BF16, kTokens, kGroups, kWidth),
                 v = stream.scratch().take_real(DType::BF16, kTokens, kGroups, kWidth),
                 out = stream.scratch().take_real(DType::BF16, kTokens, kHeads, kWidth);
  return attention_engine(stream, Attention{.q_THD = q,
                                            .k_TGD = k,
                                            .v_TGD = v,
                                            .out_THD = out,
                                            .lse_HT = stream.scratch().take<float>(kHeads, kTokens),
                                            .seq_len = kTokens,
                                            .scale = 1 / std::sqrt(static_cast<float>(kWidth))});
}

double copy_rate(Stream& stream) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kCopies = 8;
  Device& device = stream.device();
  const Buffer from(device, kBytes), to(device, kBytes);
  Stopwatch watch(cuda_device(stream));
  double best = 1e30;
  // The first round warms up.
  for (int round = 0; round < 4; ++round) {
    watch.start();
    for (int i = 0; i < kCopies; ++i) device.copy(to.data(), from.data(), kBytes);
    const double seconds = watch.stop() / kCopies;
    if (round > 0) best = std::min(best, seconds);
  }
  return 2 * static_cast<double>(kBytes) / best;
}

}  // namespace

Gpu describe_gpu(Stream& stream) {
  CudaDevice& device = cuda_device(stream);
  int driver = 0, runtime = 0;
  std::size_t available = 0, memory = 0;
  cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  cuda_check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  cuda_check(cudaMemGetInfo(&available, &memory), "asking for the GPU's memory");
  const std::size_t lt = cublasLtGetVersion();
  return {.name = properties_of_card().name,
          .compute_capability = device.compute_capability(),
          .multiprocessors = device.multiprocessors(),
          .driver = driver_version(),
          .driver_cuda = cuda_version(driver),
          .runtime_cuda = cuda_version(runtime),
          .memory = static_cast<std::int64_t>(memory),
          .available = static_cast<std::int64_t>(available),
          .cublaslt = fmt::format("{}.{}.{}", lt / 10000, lt / 100 % 100, lt % 100),
          .attention = attention_of_training(stream),
          .native = native_gemm(device)};
}

GpuRates measure_gpu(Stream& stream) {
  std::vector<GemmCase> products = {{.name = "bf16", .M = 8192, .N = 8192, .K = 8192}};
  if (fp8_native(stream.device())) {
    products.push_back(products.front());
    products.back().operands = GemmCase::Operands::Fp8;
  }
  const std::vector<GemmRate> rates = measure_gemms(stream, products, 0.1);
  return {.copy_bytes_per_s = copy_rate(stream),
          .bf16_flops_per_s = rates[0].flops_per_s(),
          .fp8_flops_per_s = rates.size() > 1 ? rates[1].flops_per_s() : 0};
}

int gpu_capability() {
  const cudaDeviceProp card = properties_of_card();
  return 10 * card.major + card.minor;
}

std::string gpu_name() {
  const std::string driver = driver_version();
  return fmt::format("{}, driver {}", properties_of_card().name, driver.empty() ? "unknown" : driver);
}

}  // namespace nibble::cuda
