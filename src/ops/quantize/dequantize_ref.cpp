// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_blocks.h"

namespace nibble {

void ref::run(Stream&, const Dequantize& d) { dequantize_rows(d, 0, d.out_RC.size(0)); }

}  // namespace nibble
