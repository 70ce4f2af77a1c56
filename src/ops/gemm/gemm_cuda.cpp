// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_kernels_cuda.h"
#include "ops/gemm/lt_plans_cuda.h"

namespace nibble::cuda {
namespace {

/// Fills in alpha: where it depends on the device, one number of scratch that a kernel writes, or the only
/// scale there is, which then is alpha to the bit.
void set_alpha(Stream& stream, const MatMul& g, LtPointers& at) {
  at.alpha = g.inverse_range;
  if (g.a_scale == nullptr && g.b_scale == nullptr) return;
  if (g.inverse_range == 1 && (g.a_scale == nullptr || g.b_scale == nullptr)) {
    at.device_alpha = g.a_scale != nullptr ? g.a_scale : g.b_scale;
    return;
  }
  float* alpha = stream.scratch().take<float>(1).data();
  write_alpha(stream, g.a_scale, g.b_scale, g.inverse_range, alpha);
  at.device_alpha = alpha;
}

}  // namespace

void run(Stream& stream, const MatMul& g) {
  const std::int64_t M = g.c_MN.size(0), N = g.c_MN.size(1);
  if (M == 0 || N == 0) return;
  const ArenaScope scope(stream.scratch());
  const std::optional<LtProduct> product = lt_product(g);
  if (!product) return multiply_directly(stream, g);
  LtPointers at{.a = g.b_NK.data(), .b = g.a_MK.data(), .d = g.c_MN.data(), .bias = g.bias_N.data()};
  View<float> sums;
  if (finished_by_us(g)) {
    sums = stream.scratch().take<float>(M, N);
    at.d = sums.data();
  } else {
    set_alpha(stream, g, at);
  }
  if (!cuda_device(stream).attached<LtPlans>().run(*product, at)) return multiply_directly(stream, g);
  if (!sums.empty()) finish_product(stream, g, sums);
}

}  // namespace nibble::cuda
