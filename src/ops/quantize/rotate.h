// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "numeric/random_key.h"
#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// The random Hadamard transform of every `size` neighbours along the rows of the result, each output rounded
/// once to BF16 (quant/hadamard.h): what Quantize sees after its rotation.
///
///   result   transpose = false: of x, [R, C rounded up to `size`];  transpose = true: of x^T, [C, R rounded
///            up to `size`]
///   padding  the last group is filled up with zeros, and all of its transform is written
///   out      its rows or its columns are contiguous
///   random   of redrawn signs: the operand's key, whose element and low role bit do not matter
///
/// Every backend gives the same bytes. Throws Error{Runtime} for shapes that do not fit, and for a size that
/// is no power of two from 2 to 128. [NVFP4] [TE]
struct Rotate {
  ConstRealView x_RC;
  bool transpose = false;
  std::uint16_t sign_mask = 0xD7E8;
  View<bf16> out;
  std::uint16_t size = 16;
  RotationSigns signs = RotationSigns::Fixed;
  RandomKey random{};
};

/// The rotation that `spec` asks for, of x or of its transpose.
Rotate rotation_of(const QuantSpec& spec, const ConstRealView& x_RC, bool transpose, const RandomKey& random,
                   const View<bf16>& out);

NIBBLE_OP(Rotate, rotate)

}  // namespace nibble
