// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_kernels_cuda.h"

#include <limits>

#include "ops/gemm/alpha.h"
#include "ops/gemm/finish_cuda.cuh"

namespace nibble::cuda {
namespace {

__global__ void alpha_kernel(const float* a_scale, const float* b_scale, float inverse_range, float* alpha) {
  *alpha = alpha_of(a_scale, b_scale, inverse_range);
}

// What the library does not finish as MatMul says comes here: a bias into BF16 or onto a product of codes,
// scales a row, sums of blocks. 4 bytes an element of sums and c once, 6 for a BF16 result. Floor of
// Qwen2.5's QKV, [32768, 1152], at 4.18 TB/s: 226 MB, 54 us. The packs are there because an element a thread,
// with its index divided in 64 bits, took 198.

constexpr int kThreads = 256;
constexpr int kPack = 8;       ///< columns: a pack of sums is 32 bytes, of a BF16 result 16
constexpr int kPacksEach = 2;  ///< of which a thread asks for all sums before it waits for one

/// Packs of columns, `in_row` of them a row. A block has kThreads * kPacksEach that lie one after the other.
template <class C, bool kRowScales>
__global__ void __launch_bounds__(kThreads)
    finish_packs_kernel(const float* sums, unsigned packs, unsigned in_row, const Finish f) {
  const unsigned first = blockIdx.x * (kThreads * kPacksEach) + threadIdx.x;
  float x[kPacksEach][kPack];
#pragma unroll
  for (int p = 0; p < kPacksEach; ++p) {
    const unsigned i = first + p * kThreads;
    if (i < packs) load_pack(sums + static_cast<std::int64_t>(i) * kPack, x[p]);
  }
  const float alpha = kRowScales ? 0.0f : alpha_for(f, 1.0f, 1.0f);
#pragma unroll
  for (int p = 0; p < kPacksEach; ++p) {
    const unsigned i = first + p * kThreads;
    if (i >= packs) return;
    const std::int64_t m = i / in_row, n = static_cast<std::int64_t>(i % in_row) * kPack;
    C* const out = static_cast<C*>(f.c) + m * f.c_stride + n;
    float bias[kPack] = {}, before[kPack] = {}, b_row[kPack] = {}, a_row = 1;
    if (f.bias != nullptr) load_pack(f.bias + n, bias);
    if (f.accumulate) load_pack(out, before);
    if (kRowScales && f.a_row != nullptr) a_row = f.a_row[m];
    if (kRowScales && f.b_row != nullptr) load_pack(f.b_row + n, b_row);
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      x[p][j] = finished(f, kRowScales ? alpha_for(f, a_row, b_row[j]) : alpha, x[p][j], bias[j], before[j]);
    store_pack(out, x[p]);
  }
}

/// Any alignment, any number of columns.
template <class C>
__global__ void __launch_bounds__(kThreads)
    any_finish_kernel(const float* sums, std::int64_t rows, std::int64_t cols, const Finish f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * cols) finish<C>(f, i / cols, i % cols, sums[i]);
}

template <class C>
void finish_as(Stream& stream, const Finish& f, const View<const float>& sums_MN) {
  constexpr std::string_view what = "matmul: finishing";
  const std::int64_t rows = sums_MN.size(0), cols = sums_MN.size(1), packs = rows * cols / kPack;
  const bool fit = cols % kPack == 0 && packs <= std::numeric_limits<std::int32_t>::max() &&
                   packs_fit<kPack>(sums_MN.data(), cols) && packs_fit<kPack>(f.bias, 0) &&
                   packs_fit<kPack>(f.b_row, 0) && packs_fit<kPack>(static_cast<const C*>(f.c), f.c_stride);
  if (!fit)
    return launch(stream, what, any_finish_kernel<C>, blocks_for(rows * cols, kThreads), kThreads, 0,
                  sums_MN.data(), rows, cols, f);
  const bool row_scales = f.a_row != nullptr || f.b_row != nullptr;
  launch(stream, what, row_scales ? finish_packs_kernel<C, true> : finish_packs_kernel<C, false>,
         blocks_for(packs, kThreads * kPacksEach), kThreads, 0, sums_MN.data(), static_cast<unsigned>(packs),
         static_cast<unsigned>(cols / kPack), f);
}

}  // namespace

void write_alpha(Stream& stream, const float* a_scale, const float* b_scale, float inverse_range,
                 float* alpha) {
  launch(stream, "matmul: alpha", alpha_kernel, 1, 1, 0, a_scale, b_scale, inverse_range, alpha);
}

void finish_product(Stream& stream, const MatMul& g, const View<const float>& sums_MN) {
  if (g.c_MN.dtype() == DType::BF16)
    finish_as<bf16>(stream, finish_of(g), sums_MN);
  else
    finish_as<float>(stream, finish_of(g), sums_MN);
}

}  // namespace nibble::cuda
