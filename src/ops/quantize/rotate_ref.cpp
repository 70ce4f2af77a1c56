// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/rotate.h"
#include "quant/hadamard.h"

namespace nibble {

void ref::run(Stream&, const Rotate& r) {
  const std::int64_t cols = r.x_RC.size(r.transpose ? 0 : 1);
  for (std::int64_t i = 0; i < r.out.size(0); ++i) {
    for (std::int64_t j0 = 0; j0 < r.out.size(1); j0 += 16) {
      float x[16];
      for (int k = 0; k < 16; ++k) {
        const std::int64_t j = j0 + k;
        x[k] = j >= cols ? 0.0f : r.transpose ? r.x_RC.get(j, i) : r.x_RC.get(i, j);
      }
      rotate_block(x, r.sign_mask);
      for (int k = 0; k < 16; ++k) r.out(i, j0 + k) = bf16::nearest(x[k]);
    }
  }
}

}  // namespace nibble
