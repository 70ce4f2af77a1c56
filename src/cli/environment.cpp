// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "base/simd.h"
#include "cli/selftest/gpu.h"
#include "train/setup.h"

namespace nibble {

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::vector<std::pair<std::string, std::string>> environment_of(BackendKind backend, int threads) {
  static constexpr const char* kLevels[] = {"baseline x86-64", "AVX2", "AVX-512"};
  utsname system{};
  uname(&system);
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  const int used = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
  const bool on_gpu = backend == BackendKind::Cuda;
  const std::string emulation =
      "code x block scale in BF16, FP32 accumulation, tensor scales on the FP32 sum";
  return {
      {"nibble", nibble_version()},
      {"date", date},
      {"processor", on_gpu ? fmt::format("{}; {}", cuda::kGpuName(), processor_name()) : processor_name()},
      {"backend", on_gpu ? std::string(name_of(backend))
                         : fmt::format("{}, {} thread{}", name_of(backend), used, used == 1 ? "" : "s")},
      {"vector instructions", kLevels[static_cast<int>(simd_level())]},
      {"BF16 matrix products", on_gpu              ? "native (tensor cores)"
                               : has_native_bf16() ? "native (AVX-512 BF16 or AMX)"
                                                   : "widened to FP32"},
      {"NVFP4 matrix products", on_gpu && native_gemm(cuda::kGpuCapability()).fp4
                                    ? "native, or emulated exactly where explain says why: " + emulation
                                    : "emulated exactly: " + emulation},
      {"compiler", "g++ " __VERSION__},
      {"system", fmt::format("{} {}", system.sysname, system.release)}};
}

}  // namespace nibble
