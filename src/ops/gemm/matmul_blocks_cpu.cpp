// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_blocks.h"
#include "ops/rows.h"

namespace nibble::cpu {

/// A plain product a block into FP32, added scaled: the sums pass through memory once a block.
void run(Stream& stream, const MatMulBlocks& g) {
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1), K = g.a_MK.size(1);
  if (M == 0 || N == 0) return;
  const ArenaScope scope(stream.scratch());
  const View<float> part = stream.scratch().take<float>(M, N), sums = stream.scratch().take<float>(M, N);
  for (std::int64_t first = 0, i = 0; first < K; first += kScaledBlock, ++i) {
    const std::int64_t count = std::min(kScaledBlock, K - first);
    run(stream,
        MatMul{.a_MK = g.a_MK.slice(1, first, count), .b_NK = g.b_NK.slice(1, first, count), .c_MN = part});
    for_tiles(stream, M, kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m)
        for (std::int64_t n = 0; n < N; ++n) {
          const float before = i == 0 ? 0.0f : sums(m, n);
          sums(m, n) = before + (g.a_scale_MI(m, i) * g.b_scale_NI(n, i)) * part(m, n);
        }
    });
  }
  for_tiles(stream, M, kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m)
      for (std::int64_t n = 0; n < N; ++n) {
        float c = g.factor * sums(m, n);
        if (!g.bias_N.empty()) c += g.bias_N(n);
        if (g.beta != 0) c += g.c_MN.get(m, n);
        g.c_MN.set(c, m, n);
      }
  });
}

}  // namespace nibble::cpu
