// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/amax_history.h"

namespace nibble::cpu {

/// A few thousand numbers: the plain loops are fast enough.
void run(Stream& stream, const ChooseAmax& c) { ref::run(stream, c); }
void run(Stream& stream, const PushAmax& p) { ref::run(stream, p); }

}  // namespace nibble::cpu
