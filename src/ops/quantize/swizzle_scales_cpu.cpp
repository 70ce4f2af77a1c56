// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/swizzle_scales.h"

namespace nibble {

/// A host has no tensor cores to feed: the plain loops serve tests and exports.
void cpu::run(Stream& stream, const SwizzleScales& s) { ref::run(stream, s); }

}  // namespace nibble
