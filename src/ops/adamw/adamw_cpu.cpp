// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// Elements a tile has. Part of the meaning of the partial sums; a multiple of kDecayGroup.
constexpr std::int64_t kTileElements = 16384;

/// Calls f(begin, end, decays) for the stretches of [begin, end) in which the decay flag does not change.
template <class F>
void for_stretches(const AdamW& a, std::int64_t begin, std::int64_t end, F f) {
  while (begin < end) {
    std::int64_t stop = end;
    bool decays = true;
    if (!a.decays_G.empty()) {
      decays = a.decays_G(begin / kDecayGroup) != 0;
      stop = begin;
      while (stop < end && (a.decays_G(stop / kDecayGroup) != 0) == decays) stop += kDecayGroup;
      stop = std::min(stop, end);
    }
    f(begin, stop, decays);
    begin = stop;
  }
}

template <class F>
double sum_of_tiles(Stream& stream, const View<const float>& x_N, F tile_sum) {
  const std::int64_t N = x_N.size(0);
  std::vector<double> partial(static_cast<std::size_t>(tiles_of(N, kTileElements)));
  for_tiles(stream, N, kTileElements, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(tile)] = tile_sum(x_N.data() + begin, end - begin);
  });
  double sum = 0;
  for (double p : partial) sum += p;
  return sum;
}

}  // namespace

void run(Stream& stream, const GateUpdate& g) { ref::run(stream, g); }

void run(Stream& stream, const AdamW& a) {
  const StepRecord& r = *a.record;
  if (r.halted) return;
  const AdamWStep step{.lr = r.lr,
                       .beta1 = a.beta1,
                       .beta2 = a.beta2,
                       .one_minus_beta1 = 1.0f - a.beta1,
                       .one_minus_beta2 = 1.0f - a.beta2,
                       .eps = a.eps,
                       .weight_decay = a.weight_decay,
                       .grad_scale = r.grad_scale,
                       .inverse_correction1 = r.inverse_correction1,
                       .inverse_correction2 = r.inverse_correction2};
  for_tiles(stream, a.w_N.size(0), kTileElements, [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for_stretches(a, first, last, [&](std::int64_t begin, std::int64_t end, bool decays) {
      AdamWStep here = step;
      if (!decays) here.weight_decay = 0;
      float* w = a.w_N.data() + begin;
      NIBBLE_SIMD_CALL(adamw_row, here, a.grad_N.data() + begin, w, a.m_N.data() + begin,
                       a.v_N.data() + begin, end - begin);
      if (!a.copy_N.empty())
        NIBBLE_SIMD_CALL(narrow, w, static_cast<bf16*>(a.copy_N.data()) + begin, end - begin);
    });
  });
}

void run(Stream& stream, const SumSquares& s) {
  *s.sum = sum_of_tiles(
      stream, s.x_N, [](const float* x, std::int64_t n) { return NIBBLE_SIMD_CALL(sum_squares_row, x, n); });
}

void run(Stream& stream, const Sum& s) {
  *s.sum = sum_of_tiles(stream, s.x_N,
                        [](const float* x, std::int64_t n) { return NIBBLE_SIMD_CALL(sum_row, x, n); });
}

}  // namespace nibble::cpu
