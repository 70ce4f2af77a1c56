// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/quantize/quantize.h"

/// Rotations that the quantisers do not make in passing (rotates_in_passing): the rotated matrix is made
/// first, in scratch memory, and quantised as it lies. The same numbers, since a rotated value is rounded to
/// BF16 before anything looks at it.
namespace nibble {

/// The job on the rotated copy of its source, which lies as the source does, so that random numbers belong to
/// the same elements. The copy is taken from stream.scratch(): the caller holds an ArenaScope.
Quantize on_rotated_copy(Stream& stream, const Quantize& q);

}  // namespace nibble
