// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_rotated.h"

#include "ops/quantize/rotate.h"

namespace nibble {

Quantize on_rotated_copy(Stream& stream, const Quantize& q) {
  const QuantizedShape s = quantized_shape(q.spec, q.x_RC.size(0), q.x_RC.size(1), q.transpose);
  const View<bf16> copy =
      q.transpose ? stream.scratch().take<bf16>(s.cols, s.rows) : stream.scratch().take<bf16>(s.rows, s.cols);
  rotate(stream, rotation_of(q.spec, q.x_RC, q.transpose, q.random, q.transpose ? copy.transposed() : copy));
  Quantize rotated = q;
  rotated.x_RC = View<const bf16>(copy);
  rotated.spec.rotation = 0;
  if (q.row_elements == 0) rotated.row_elements = q.x_RC.size(1);
  return rotated;
}

}  // namespace nibble
