// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/alpha.h"
#include "ops/gemm/row_scales.h"

namespace nibble::ref {

void run(Stream&, const MatMul& g) {
  const float alpha = alpha_of(g);
  const bool rows = has_row_scales(g);
  with_type(g.a_MK, [&](auto a_MK) {
    const auto b_NK =
        g.b_NK.as<typename std::remove_const_t<std::remove_reference_t<decltype(a_MK(0, 0))>>>();
    for (std::int64_t m = 0; m < a_MK.size(0); ++m)
      for (std::int64_t n = 0; n < b_NK.size(0); ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < a_MK.size(1); ++k)
          sum += static_cast<double>(to_float(a_MK(m, k))) * to_float(b_NK(n, k));
        float c = (rows ? row_alpha(g, m, n) : alpha) * static_cast<float>(sum);
        if (!g.bias_N.empty()) c += g.bias_N(n);
        if (g.beta != 0) c += g.c_MN.get(m, n);
        g.c_MN.set(c, m, n);
      }
  });
}

}  // namespace nibble::ref
