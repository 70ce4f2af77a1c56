// SPDX-License-Identifier: Apache-2.0
#include "ops/health/quant_stats_rows.h"

namespace nibble {

void ref::run(Stream& stream, const MeasureQuant& m) {
  const ArenaScope scope(stream.scratch());
  View<float> decoded;
  if (is_quantized(m.spec.format)) {
    const std::int64_t cols = result_cols(m);
    decoded = stream.scratch().take<float>(m.x_RC.size(0), cols);
    run(stream, decoding_of(m, decoded));
  }
  QuantStats s = measure_rows(m, decoded, 0, m.x_RC.size(0));
  set_tensor_numbers(m, s);
  m.out->merge(s);
}

}  // namespace nibble
