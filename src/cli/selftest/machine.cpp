// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/machine.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <thread>

#include "base/simd.h"
#include "cli/environment.h"
#include "ops/gemm/gemm.h"
#include "train/setup.h"

namespace nibble {
namespace {

/// The rest of the first line of `path` that begins with `key`, without the separator; empty when none does.
std::string field(const char* path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// A limit on memory that a container sets, or the largest number.
std::int64_t memory_limit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(path);
    std::int64_t bytes = 0;
    if (in >> bytes) return bytes;  // The word "max" is no number: no limit.
  }
  return std::numeric_limits<std::int64_t>::max();
}

std::int64_t available_memory() {
  const std::string text = field("/proc/meminfo", "MemAvailable");
  return text.empty() ? 0 : std::stoll(text) * 1024;
}

const char* name_of_isa(dnnl_cpu_isa_t isa) {
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
      return "AVX2 VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AMX";
    default:
      return "its own choice of instructions";
  }
}

}  // namespace

Machine describe_machine() {
  Machine m;
  m.version = nibble_version();
  m.cpu = processor_name();
  m.hardware_threads = static_cast<int>(std::thread::hardware_concurrency());
  m.simd = simd_level() == SimdLevel::Avx512 ? "avx512"
           : simd_level() == SimdLevel::Avx2 ? "avx2"
                                             : "baseline";
  m.native_bf16 = has_native_bf16();
  const std::int64_t installed = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  m.memory = std::min(installed, memory_limit());
  m.available = std::min(available_memory(), m.memory);
  const dnnl_version_t* v = dnnl_version();
  m.onednn =
      fmt::format("{}.{}.{}, {}", v->major, v->minor, v->patch, name_of_isa(dnnl_get_effective_cpu_isa()));
  for (const BackendKind kind : {BackendKind::Ref, BackendKind::Cpu, BackendKind::Cuda})
    if (matmul.has(kind)) m.backends.emplace_back(nibble::name_of(kind));
  return m;
}

std::vector<GemmKind> gemm_kinds(BackendKind backend, const Machine& machine) {
  const bool ref = backend == BackendKind::Ref;
  const std::string sums = ref ? "summed in double" : "FP32 accumulation";
  const std::string product = ref                   ? ""
                              : machine.native_bf16 ? "native BF16 products, "
                                                    : "products in FP32, ";
  const char* native = ref ? "reference" : "native";
  const char* bf16 = ref ? "reference" : machine.native_bf16 ? "native" : "emulated-exact";
  return {
      {"fp32", native, sums},
      {"bf16", bf16,
       ref || machine.native_bf16 ? "BF16 operands, " + sums
                                  : "no BF16 instructions: operands widened to FP32 without loss, " + sums},
      {"nvfp4", "emulated-exact",
       "code x block scale as BF16 (no rounding), " + product + sums + ", tensor scales on the result"},
      {"mxfp4", "emulated-exact", "code x block scale as BF16 (no rounding), " + product + sums},
      {"mxfp8", "emulated-exact", "code x block scale as BF16 (no rounding above 2^-133), " + product + sums},
      {"fp8", "emulated-exact",
       "code as BF16 (no rounding), " + product + sums + ", tensor scales on the result"},
  };
}

std::vector<GemmKind> gemm_kinds(const Gpu& gpu) {
  const std::string exact =
                        "code x block scale as BF16 (no rounding), native BF16 products, FP32 accumulation",
                    here = fmt::format("compute capability {}", gpu.capability());
  const auto blocks = [&](bool native, std::string name, const char* product, const char* op,
                          const char* tail) -> GemmKind {
    if (native)
      return {std::move(name), "native",
              fmt::format("the codes themselves, by {}, which is compiled and tested against its emulation, "
                          "and not run on such a card by this project (self-test \"coded products\"); "
                          "explain says which GEMMs of a step are not; precision.native_{} = false: as BF16, "
                          "exactly",
                          op, std::string_view(op).substr(std::string_view("matmul_").size()))};
    return {std::move(name), "emulated-exact",
            fmt::format("{}{}; {} has no {} products (from 10.0)", exact, tail, here, product)};
  };
  const auto fp8 = [&]() -> GemmKind {
    if (gpu.native.fp8)
      return {"fp8", "native",
              "the codes themselves, in sums of about 13 bits behind the largest product of a step; "
              "precision.native_fp8 = false: as BF16, exactly"};
    return {
        "fp8", "emulated-exact",
        fmt::format("code as BF16 (no rounding), native BF16 products, FP32 accumulation, tensor scales on "
                    "the result; {} has no FP8 products (from 8.9)",
                    here)};
  };
  return {
      {"fp32", "native", "FP32 operands and accumulation, never TF32"},
      {"bf16", "native", "BF16 operands, FP32 accumulation"},
      blocks(gpu.native.fp4, "nvfp4", "NVFP4", "matmul_fp4", ", tensor scales on the result"),
      {"mxfp4", "emulated-exact", exact},
      blocks(gpu.native.mxfp8, "mxfp8", "MXFP8", "matmul_mxfp8", ""),
      fp8(),
  };
}

}  // namespace nibble
