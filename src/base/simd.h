// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A file named x_simd.cpp is compiled once for each instruction set, inside `namespace NIBBLE_SIMD`
/// (baseline, avx2 or avx512), and x_cpu.cpp picks one at run time:
///
///   // x_kernels.h                                  // x_simd.cpp
///   #define NIBBLE_X_KERNELS(level) \                namespace nibble::cpu::NIBBLE_SIMD {
///     namespace level { void scale(...); }           void scale(...) { plain loops }
///   namespace nibble::cpu { NIBBLE_FOR_EACH_SIMD(NIBBLE_X_KERNELS) }   }
///
///   // x_cpu.cpp
///   NIBBLE_SIMD_CALL(scale, args...);
///
/// Non-goals: bit differences between the levels. Loops are plain, contraction is off, a fused
/// multiply-add is written std::fma, and reductions keep a fixed number of partial sums, so every
/// level gives the same bits.
/// Rule: an x_simd.cpp includes no header with inline functions but NIBBLE_HD ones (no containers,
/// no fmt): the linker could pick the AVX-512 copy for everyone.
namespace nibble {

enum class SimdLevel { Baseline, Avx2, Avx512 };

/// The best level of this processor, or the one forced by set_simd_level (tests compare levels).
SimdLevel simd_level();
void set_simd_level(SimdLevel level);

/// Whether the processor multiplies BF16 in hardware (AVX-512 BF16 or AMX).
bool has_native_bf16();

}  // namespace nibble

#define NIBBLE_FOR_EACH_SIMD(X) X(baseline) X(avx2) X(avx512)

#define NIBBLE_SIMD_CALL(function, ...)                                                  \
  (::nibble::simd_level() == ::nibble::SimdLevel::Avx512 ? avx512::function(__VA_ARGS__) \
   : ::nibble::simd_level() == ::nibble::SimdLevel::Avx2 ? avx2::function(__VA_ARGS__)   \
                                                         : baseline::function(__VA_ARGS__))
