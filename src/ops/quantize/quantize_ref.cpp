// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_blocks.h"
#include "ops/quantize/quantize_rotated.h"

namespace nibble {

void ref::run(Stream& stream, const Quantize& q) {
  if (!rotates_in_passing(q.spec)) {
    const ArenaScope scope(stream.scratch());
    return run(stream, on_rotated_copy(stream, q));
  }
  const std::int64_t rows = q.x_RC.size(q.transpose ? 1 : 0);
  const float amax = q.amax_given != nullptr ? *q.amax_given : find_amax(q, 0, rows);
  note_fault(q.spec.non_finite, amax, q.fault, q.fault_id);
  *q.amax = amax;
  *q.scale = operand_scale(q, amax);
  quantize_rows(q, amax, 0, rows);
}

}  // namespace nibble
