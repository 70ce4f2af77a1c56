// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <vector>

#include "numeric/bf16.h"
#include "numeric/rounding.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// Elements a tile has. Part of the meaning of the partial sums; a multiple of kDecayGroup.
constexpr std::int64_t kTileElements = 16384;

/// The tensor that element i belongs to; -1: nobody asks for amaxes.
std::int64_t tensor_of(const AdamW& a, std::int64_t i) {
  const std::int32_t* first = a.starts_S.data();
  return std::upper_bound(first, first + (a.starts_S.empty() ? 0 : a.starts_S.size(0)), i / kDecayGroup) -
         first - 1;
}

/// Calls f(begin, end, decays, tensor) for the stretches of [begin, end) in which neither the decay flag nor
/// the tensor changes.
template <class F>
void for_stretches(const AdamW& a, std::int64_t begin, std::int64_t end, F f) {
  for (std::int64_t tensor = tensor_of(a, begin); begin < end; ++tensor) {
    const bool last = tensor < 0 || tensor + 1 == a.starts_S.size(0);
    const std::int64_t of_tensor = last ? end : std::min(end, a.starts_S(tensor + 1) * kDecayGroup);
    while (begin < of_tensor) {
      std::int64_t stop = of_tensor;
      bool decays = true;
      if (!a.decays_G.empty()) {
        decays = a.decays_G(begin / kDecayGroup) != 0;
        stop = begin;
        while (stop < of_tensor && (a.decays_G(stop / kDecayGroup) != 0) == decays) stop += kDecayGroup;
        stop = std::min(stop, of_tensor);
      }
      f(begin, stop, decays, tensor);
      begin = stop;
    }
  }
}

/// Tiles of one tensor are computed by several threads; the largest is the same in any order.
void raise(float& amax, float to) {
  const std::atomic_ref<float> shared(amax);
  float now = shared.load(std::memory_order_relaxed);
  while (magnitude_bits(now) < magnitude_bits(to) &&
         !shared.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
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
  if (!a.amaxes_S.empty())
    std::fill_n(a.amaxes_S.data(), a.amaxes_S.size(0), 0.0f);
  else if (r.halted)
    return;
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
    for_stretches(a, first, last,
                  [&](std::int64_t begin, std::int64_t end, bool decays, std::int64_t tensor) {
                    float* w = a.w_N.data() + begin;
                    if (!r.halted) {
                      AdamWStep here = step;
                      if (!decays) here.weight_decay = 0;
                      NIBBLE_SIMD_CALL(adamw_row, here, a.grad_N.data() + begin, w, a.m_N.data() + begin,
                                       a.v_N.data() + begin, end - begin);
                      if (!a.copy_N.empty())
                        NIBBLE_SIMD_CALL(narrow, w, static_cast<bf16*>(a.copy_N.data()) + begin, end - begin);
                    }
                    if (tensor < 0) return;
                    // The largest of rounded values is the rounded largest value.
                    const float largest = bits_float(NIBBLE_SIMD_CALL(magnitude_bits_of, w, end - begin));
                    raise(a.amaxes_S(tensor), bf16::nearest(largest).value());
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
