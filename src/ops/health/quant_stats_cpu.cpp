// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/health/quant_stats_rows.h"
#include "ops/quantize/quantize_blocks.h"

namespace nibble {

/// Strips of rows (no square tile is split) in parallel, their sums added in the order of the strips.
/// Decoding is the vectorised one; the sums are doubles and stay scalar: this runs on a few sampled steps.
void cpu::run(Stream& stream, const MeasureQuant& m) {
  const ArenaScope scope(stream.scratch());
  const std::int64_t rows = m.x_RC.size(0), strip = rows_of_a_strip(m.spec);
  const std::int64_t strips = (rows + strip - 1) / strip;
  View<float> decoded;
  if (is_quantized(m.spec.format)) {
    const std::int64_t cols = result_cols(m);
    decoded = stream.scratch().take<float>(rows, cols);
    run(stream, decoding_of(m, decoded));
  }
  const View<QuantStats> partial = stream.scratch().take<QuantStats>(strips);
  stream.pool().parallel_for(strips, [&](std::int64_t i) {
    partial(i) = measure_rows(m, decoded, i * strip, std::min((i + 1) * strip, rows));
  });
  for (std::int64_t i = 0; i < strips; ++i) m.out->merge(partial(i));
  QuantStats tensor;
  set_tensor_numbers(m, tensor);
  m.out->merge(tensor);
}

}  // namespace nibble
