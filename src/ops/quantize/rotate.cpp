// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/rotate.h"

namespace nibble {

Rotate rotation_of(const QuantSpec& spec, const ConstRealView& x_RC, bool transpose, const RandomKey& random,
                   const View<bf16>& out) {
  return {.x_RC = x_RC,
          .transpose = transpose,
          .sign_mask = spec.sign_mask,
          .out = out,
          .size = spec.rotation,
          .signs = spec.signs,
          .random = random};
}

void check(const Rotate& r) {
  check(r.x_RC.rank() == 2 && (r.x_RC.size(1) <= 1 || r.x_RC.stride(1) == 1) && r.out.rank() == 2 &&
            (r.out.size(1) <= 1 || r.out.stride(1) == 1 || r.out.stride(0) == 1),
        "rotate: x and out must be matrices, the rows of x and the rows or columns of out contiguous");
  check(is_rotation_size(r.size), "rotate: there is no rotation of size {}; use a power of two from 2 to 128",
        r.size);
  const std::int64_t rows = r.x_RC.size(r.transpose ? 1 : 0), cols = r.x_RC.size(r.transpose ? 0 : 1);
  const std::int64_t padded = (cols + r.size - 1) / r.size * r.size;
  check(r.out.size(0) == rows && r.out.size(1) == padded, "rotate: out must be [{}, {}], not [{}, {}]", rows,
        padded, r.out.size(0), r.out.size(1));
}

}  // namespace nibble
