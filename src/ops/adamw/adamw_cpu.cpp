// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// Elements a tile has. Part of the meaning of the partial sums.
constexpr std::int64_t kTileElements = 16384;

float inverse_correction(float beta, std::int64_t step) {
  return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), static_cast<double>(step))));
}

}  // namespace

void run(Stream& stream, const AdamW& a) {
  const AdamWStep step{.lr = a.lr,
                       .beta1 = a.beta1,
                       .beta2 = a.beta2,
                       .one_minus_beta1 = 1.0f - a.beta1,
                       .one_minus_beta2 = 1.0f - a.beta2,
                       .eps = a.eps,
                       .weight_decay = a.weight_decay,
                       .grad_scale = a.grad_scale,
                       .inverse_correction1 = inverse_correction(a.beta1, a.step),
                       .inverse_correction2 = inverse_correction(a.beta2, a.step)};
  for_tiles(stream, a.w_N.size(0), kTileElements, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    float* w = a.w_N.data() + begin;
    NIBBLE_SIMD_CALL(adamw_row, step, a.grad_N.data() + begin, w, a.m_N.data() + begin, a.v_N.data() + begin,
                     end - begin);
    if (!a.copy_N.empty())
      NIBBLE_SIMD_CALL(narrow, w, static_cast<bf16*>(a.copy_N.data()) + begin, end - begin);
  });
}

void run(Stream& stream, const SumSquares& s) {
  const std::int64_t N = s.x_N.size(0);
  std::vector<double> partial(static_cast<std::size_t>(tiles_of(N, kTileElements)));
  for_tiles(stream, N, kTileElements, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(tile)] =
        NIBBLE_SIMD_CALL(sum_squares_row, s.x_N.data() + begin, end - begin);
  });
  double sum = 0;
  for (double p : partial) sum += p;
  *s.sum = sum;
}

}  // namespace nibble::cpu
