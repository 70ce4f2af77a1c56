// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_pair.h"

namespace nibble {

void ref::run(Stream& stream, const QuantizePair& pair) {
  run(stream, row_copy(pair));
  run(stream, transposed_copy(pair));
}

}  // namespace nibble
