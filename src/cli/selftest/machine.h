// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/selftest/gpu.h"

namespace nibble {

/// What a product of two operands of one kind is here.
struct GemmKind {
  std::string name;  ///< "nvfp4"
  std::string how;   ///< "native", "emulated-exact", or "reference"
  std::string detail;
};

/// The machine as nibble sees it.
struct Machine {
  std::string version;  ///< of nibble
  std::string cpu;      ///< the processor's own name
  int hardware_threads = 0;
  std::string simd;  ///< "baseline", "avx2" or "avx512": what was chosen
  bool native_bf16 = false;
  std::int64_t memory = 0;  ///< bytes of the machine, or of the control group when that is less
  std::int64_t available = 0;
  std::string onednn;                 ///< version and instruction set
  std::vector<std::string> backends;  ///< built into this binary
};

Machine describe_machine();

/// How each kind of GEMM of a training step runs on ref or cpu: in hardware, or by exact emulation.
std::vector<GemmKind> gemm_kinds(BackendKind backend, const Machine& machine);

/// The same on a card, with the reason.
std::vector<GemmKind> gemm_kinds(const Gpu& gpu);

}  // namespace nibble
