// SPDX-License-Identifier: Apache-2.0
#include "ops/lanes.h"
#include "ops/rows_kernels.h"

namespace nibble::cpu::NIBBLE_SIMD {

void widen(const bf16* __restrict x, float* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i].value();
}

void narrow(const float* __restrict x, bf16* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = bf16::nearest(x[i]);
}

void add_to_double(double* __restrict acc, const float* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) acc[i] += static_cast<double>(x[i]);
}

void add_to(float* __restrict x, const float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}

std::uint32_t magnitude_bits_of(const float* x, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = magnitude_bits(x[i]);
    most = most < bits ? bits : most;
  }
  return most;
}

float dot(const float* x, const float* y, std::int64_t n) {
  using namespace lanes;
  F16 acc = {}, a, b;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    load(a, x + i);
    load(b, y + i);
    acc += a * b;
  }
  load_tail(a, x + i, n - i);
  load_tail(b, y + i, n - i);
  acc += a * b;
  return sum(acc);
}

}  // namespace nibble::cpu::NIBBLE_SIMD
