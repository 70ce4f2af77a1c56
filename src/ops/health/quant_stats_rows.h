// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize.h"

namespace nibble {

/// Values of the result's row, which a rotation may have padded.
std::int64_t result_cols(const MeasureQuant& m);

/// How the codes of `m` decode into `out` [rows, cols of the result].
Dequantize decoding_of(const MeasureQuant& m, const View<float>& out);

/// Statistics of rows [begin, end), begin a multiple of rows_of_a_strip; `decoded` holds all rows of the
/// result, and is empty where the format has no codes. The tensor's amax and scale are not set.
QuantStats measure_rows(const MeasureQuant& m, const View<const float>& decoded, std::int64_t begin,
                        std::int64_t end);

/// The tensor's amax and scale, which lie in host memory.
void set_tensor_numbers(const MeasureQuant& m, QuantStats& s);

}  // namespace nibble
