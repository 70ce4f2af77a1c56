// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/quantize/quantize.h"

/// The meaning of the op: the arithmetic of quant/ applied block by block, in the plainest order, to some
/// rows of the result. `ref` takes all rows at once; `cpu` takes strips in parallel where it has no kernel of
/// its own (is_common says where it has).
namespace nibble {

/// Rows of the result that no block lies across: a strip begins at a multiple of it.
constexpr std::int64_t rows_of_a_strip(const QuantSpec& spec) {
  return spec.tile == Tile::Square && info(spec.format).block > 16 ? info(spec.format).block : 16;
}

/// The largest magnitude of rows [begin, end) of the result, rotated where the spec says so.
float find_amax(const Quantize& q, std::int64_t begin, std::int64_t end);

/// Quantises rows [begin, end) of the result under the tensor's amax, `row_amax` included; q.amax and q.scale
/// are the caller's.
void quantize_rows(const Quantize& q, float amax, std::int64_t begin, std::int64_t end);

/// What q.scale becomes: the factor by which MatMul multiplies the finished sum.
float operand_scale(const Quantize& q, float amax);

/// Decodes rows [begin, end).
void dequantize_rows(const Dequantize& d, std::int64_t begin, std::int64_t end);

}  // namespace nibble
