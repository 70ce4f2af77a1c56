// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/rotate.h"
#include "quant/hadamard.h"

namespace nibble {

void ref::run(Stream&, const Rotate& r) {
  const std::int64_t cols = r.x_RC.size(r.transpose ? 0 : 1);
  const SignBits signs = rotation_signs(r.size, r.signs, r.sign_mask, r.random.resolved());
  for (std::int64_t i = 0; i < r.out.size(0); ++i) {
    for (std::int64_t j0 = 0; j0 < r.out.size(1); j0 += r.size) {
      float x[kLargestRotation] = {};
      for (int k = 0; k < r.size; ++k) {
        const std::int64_t j = j0 + k;
        x[k] = j >= cols ? 0.0f : r.transpose ? r.x_RC.get(j, i) : r.x_RC.get(i, j);
      }
      hadamard(x, r.size, signs);
      for (int k = 0; k < r.size; ++k) r.out(i, j0 + k) = bf16::nearest(x[k]);
    }
  }
}

}  // namespace nibble
