// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_blocks.h"

namespace nibble {

void ref::run(Stream&, const Quantize& q) {
  const std::int64_t rows = q.x_RC.size(q.transpose ? 1 : 0);
  const float amax = q.amax_given != nullptr ? *q.amax_given : find_amax(q, 0, rows);
  note_fault(q.spec.non_finite, amax, q.fault, q.fault_id);
  *q.amax = amax;
  *q.scale = operand_scale(q, amax);
  quantize_rows(q, amax, 0, rows);
}

}  // namespace nibble
