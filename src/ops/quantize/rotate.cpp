// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/rotate.h"

namespace nibble {

void check(const Rotate& r) {
  check(r.x_RC.rank() == 2 && r.out.rank() == 2 && (r.out.size(1) <= 1 || r.out.stride(1) == 1),
        "rotate: x and out must be matrices, the rows of out contiguous");
  const std::int64_t rows = r.x_RC.size(r.transpose ? 1 : 0), cols = r.x_RC.size(r.transpose ? 0 : 1);
  check(r.out.size(0) == rows && r.out.size(1) == (cols + 15) / 16 * 16,
        "rotate: out must be [{}, {}], not [{}, {}]", rows, (cols + 15) / 16 * 16, r.out.size(0),
        r.out.size(1));
}

}  // namespace nibble
