// SPDX-License-Identifier: Apache-2.0
#include "base/simd.h"

#include <atomic>

namespace nibble {
namespace {

SimdLevel detect() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return SimdLevel::Avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return SimdLevel::Avx2;
  return SimdLevel::Baseline;
}

std::atomic<SimdLevel>& current() {
  static std::atomic<SimdLevel> level{detect()};
  return level;
}

}  // namespace

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

void set_simd_level(SimdLevel level) {
  if (level <= detect()) current().store(level, std::memory_order_relaxed);
}

bool has_native_bf16() {
  __builtin_cpu_init();
  return simd_level() == SimdLevel::Avx512 && __builtin_cpu_supports("avx512bf16");
}

}  // namespace nibble
