// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/alpha.h"
#include "ops/gemm/gemm_kernels.h"
#include "ops/gemm/row_scales.h"
#include "ops/gemm/tile_product.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

struct Tiling {
  std::int64_t m = 0, n = 0;  ///< rows and columns of a tile
};

std::int64_t part(std::int64_t size, std::int64_t parts) {
  const std::int64_t each = (size + parts - 1) / parts;
  return (each + 15) / 16 * 16;
}

/// About 256 x 512, where oneDNN is near its best and an FP32 tile fits the second cache; smaller when that
/// would leave fewer than four tiles. A function of the shape alone, never of the threads.
Tiling tiling_of(std::int64_t M, std::int64_t N) {
  std::int64_t parts_m = tiles_of(M, 256), parts_n = tiles_of(N, 512);
  while (parts_m * parts_n < 4) {
    const std::int64_t m = part(M, parts_m), n = part(N, parts_n);
    if (m <= 64 && n <= 64) break;
    if (m >= n)
      parts_m *= 2;
    else
      parts_n *= 2;
  }
  return {part(M, parts_m), part(N, parts_n)};
}

/// Strides that oneDNN accepts also where an axis has one element and its stride says nothing.
ConstRealView with_plain_strides(const ConstRealView& x) {
  Layout l = x.layout();
  if (l.stride[1] == 1 || l.size[1] <= 1) {
    l.stride = {l.size[0] <= 1 ? l.size[1] : l.stride[0], 1};
  } else {
    l.stride = {1, l.size[1] <= 1 ? l.size[0] : l.stride[1]};
  }
  return {x.data(), x.dtype(), l};
}

/// The same matrix in FP32, in the same order of axes in memory.
ConstRealView widened(Stream& stream, const ConstRealView& x) {
  const bool transposed = x.stride(1) != 1;
  const ConstRealView rows = transposed ? x.transposed() : x;
  const View<float> wide = stream.scratch().take<float>(rows.size(0), rows.size(1));
  for_tiles(stream, rows.size(0), kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) read_row(rows, r, wide.data() + r * wide.stride(0));
  });
  return transposed ? ConstRealView(View<const float>(wide.transposed()))
                    : ConstRealView(View<const float>(wide));
}

/// scale_row with an alpha of its own for every element.
void scale_row_by_rows(const MatMul& g, std::int64_t m, const float* acc, const float* old, float* out) {
  for (std::int64_t n = 0; n < g.c_MN.size(1); ++n) {
    float c = row_alpha(g, m, n) * acc[n];
    if (!g.bias_N.empty()) c += g.bias_N(n);
    if (old != nullptr) c += old[n];
    out[n] = c;
  }
}

/// One tile: the product into FP32, then alpha, bias and beta row by row while it is in the cache.
void run_tile(const MatMul& g, const ConstRealView& a, const ConstRealView& b, float alpha,
              const RealView& c) {
  const bool rows = has_row_scales(g);
  const bool finished_by_product = alpha == 1 && !rows && g.bias_N.empty() && g.beta == 0;
  const bool in_place = c.dtype() == DType::F32 && g.beta == 0;
  thread_local std::vector<float> accumulators;
  if (!in_place) accumulators.resize(static_cast<std::size_t>(c.size(0) * c.size(1)));
  float* acc = in_place ? static_cast<float*>(c.data()) : accumulators.data();
  const std::int64_t stride = in_place ? std::max(c.stride(0), c.size(1)) : c.size(1);
  multiply({.m = c.size(0),
            .n = c.size(1),
            .k = a.size(1),
            .a = a.data(),
            .b = b.data(),
            .bf16_operands = a.dtype() == DType::BF16,
            .a_stride_m = a.stride(0),
            .a_stride_k = a.stride(1),
            .b_stride_n = b.stride(0),
            .b_stride_k = b.stride(1),
            .c = acc,
            .c_stride_m = stride});
  if (in_place && finished_by_product) return;
  for (std::int64_t m = 0; m < c.size(0); ++m) {
    float* row = acc + m * stride;
    const float* old = g.beta == 0 ? nullptr : static_cast<const float*>(c.data()) + m * c.stride(0);
    float* out = begin_row(c, m, row);
    if (rows) scale_row_by_rows(g, m, row, old, out);
    if (!finished_by_product && !rows)
      NIBBLE_SIMD_CALL(scale_row, row, alpha, g.bias_N.data(), old, out, c.size(1));
    finish_row(c, m, row);
  }
}

}  // namespace

void run(Stream& stream, const MatMul& g) {
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1);
  if (M == 0 || N == 0) return;
  const ArenaScope scope(stream.scratch());
  ConstRealView a = with_plain_strides(g.a_MK), b = with_plain_strides(g.b_NK);
  if (a.dtype() == DType::BF16 && !has_native_bf16()) {
    a = widened(stream, a);
    b = widened(stream, b);
  }
  const float alpha = alpha_of(g);
  const Tiling tile = tiling_of(M, N);
  const std::int64_t tiles_n = tiles_of(N, tile.n);
  stream.pool().parallel_for(tiles_of(M, tile.m) * tiles_n, [&](std::int64_t i) {
    const std::int64_t m = i / tiles_n * tile.m, n = i % tiles_n * tile.n;
    const std::int64_t rows = std::min(tile.m, M - m), columns = std::min(tile.n, N - n);
    MatMul part = g;
    if (!g.bias_N.empty()) part.bias_N = g.bias_N.slice(0, n, columns);
    if (!g.a_row_scale_M.empty()) part.a_row_scale_M = g.a_row_scale_M.slice(0, m, rows);
    if (!g.b_row_scale_N.empty()) part.b_row_scale_N = g.b_row_scale_N.slice(0, n, columns);
    part.c_MN = g.c_MN.rows(m, rows).cols(n, columns);
    run_tile(part, a.rows(m, rows), b.rows(n, columns), alpha, part.c_MN);
  });
}

}  // namespace nibble::cpu
