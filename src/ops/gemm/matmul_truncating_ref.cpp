// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/row_scales.h"
#include "ops/gemm/truncating_finish.h"
#include "ops/gemm/truncating_row.h"

namespace nibble::ref {

void run(Stream&, const MatMulTruncating& g) {
  for (std::int64_t m = 0; m < g.a_codes.size(0); ++m)
    for (std::int64_t n = 0; n < g.b_codes.size(0); ++n) {
      const CodedRow a{&g.a_codes(m, 0), &g.a_scales(m, 0)}, b{&g.b_codes(n, 0), &g.b_scales(n, 0)};
      finish(g, m, n, truncating_sum(g.format == Format::Nvfp4, a, b, g.a_codes.size(1)));
    }
}

}  // namespace nibble::ref
