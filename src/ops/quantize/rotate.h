// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/op.h"

namespace nibble {

/// What Quantize sees after its rotation, for those who measure it: the random Hadamard transform of every 16
/// neighbours along the rows of the result, each output rounded once to BF16 (quant/hadamard.h).
///
///   result   transpose = false: of x, [R, ceil16(C)];  transpose = true: of x^T, [C, ceil16(R)]
///   padding  the last 16 are filled up with zeros, and all of their transform is written
///
/// Every backend gives the same bytes. Throws Error{Runtime} for shapes that do not fit. [NVFP4] [TE]
struct Rotate {
  ConstRealView x_RC;
  bool transpose = false;
  std::uint16_t sign_mask = 0xD7E8;
  View<bf16> out;
};

NIBBLE_OP(Rotate, rotate)

}  // namespace nibble
