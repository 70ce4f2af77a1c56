// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_pair.h"

namespace nibble {
namespace {

Quantize one(const QuantizePair& pair, const QuantizePair::Copy& copy, bool transpose) {
  return {.x_RC = pair.x_RC,
          .spec = copy.spec,
          .transpose = transpose,
          .random = copy.random,
          .row_elements = pair.row_elements,
          .amax_given = copy.amax_given,
          .amax = copy.amax,
          .scale = copy.scale,
          .values = copy.values,
          .codes = copy.codes,
          .scales = copy.scales,
          .row_amax = copy.row_amax,
          .fault = pair.fault,
          .fault_id = copy.fault_id};
}

}  // namespace

Quantize row_copy(const QuantizePair& pair) { return one(pair, pair.rows, false); }
Quantize transposed_copy(const QuantizePair& pair) { return one(pair, pair.transposed, true); }

void check(const QuantizePair& pair) {
  check(row_copy(pair));
  check(transposed_copy(pair));
}

}  // namespace nibble
