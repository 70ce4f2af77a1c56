// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/random_key.h"
#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// Quantises a matrix for one operand of one GEMM.
///
///   source   x[r,c], FP32 or BF16, row-major (the last axis contiguous; rows may be strided)
///   result   transpose = false: x itself [R, C], blocks run along c
///            transpose = true:  x^T [C, R], blocks run along r
///   rotate   spec.rotation, 2 to 128: the random Hadamard transform along the block axis, rounded to BF16,
///            before the amax and the cast; the last group is padded with zeros. The transform of a padded
///            group fills all of it, so the result's block axis is then rounded up to a multiple of the
///            rotation: dropping the tail would change the product. See quantized_shape. Redrawn signs are
///            those of `random`.
///   values   the exact BF16 operand: element value x block scale, WITHOUT the tensor scale. E2M1 x E4M3 has
///            at most six significant bits, so BF16 holds it exactly.
///   codes    NVFP4, MXFP4: two a byte, low nibble = even index of the block axis, [rows, ceil(cols / 2)];
///            6- and 8-bit formats: one a byte, [rows, cols]
///   scales   one byte a block, [rows, ceil(cols / block)], linear layout; a square tile's scale repeats on
///            its rows. FP8 blocks with FP32 scales: four bytes a block, the decode scale
///   amax     max |x| of what is quantised (after the rotation). NonFinite::Detect: NaN or Inf in x comes out
///            here as NaN or Inf and the other outputs are unspecified, so the caller must look.
///   scale    what MatMul takes as this operand's scale: NVFP4: amax (times amax_factor: 17/16 under
///   headroom,
///            17/16 * 0.93 under MS-EDEN; times 7/4 under bound 256, since gemm_inverse_range divides by
///            448); FP8 per tensor: 1 / encode scale; MX and FP8 blocks: 1, MXFP4 under ThreeQuarters 4/3
///   row_amax spec.tensor_scaling = Row: [rows], the amax of each row of the result, which MatMul takes as
///            a_row_scale or b_row_scale while `scale` is 1; otherwise empty
///   random   for stochastic rounding: byte or word of the element at (token r, feature c) of the source,
///   that is
///            random.first_element + r * row_elements + c, whatever the layout of the result. Under MS-EDEN
///            the bits of a block's scale are those of its first element
///
/// Every backend gives the same bytes. Throws Error{Runtime} for shapes that do not fit.
///
/// Square tiles exist for NVFP4 and FP8 blocks, stochastic rounding and ties away for NVFP4 and MXFP4. FP8
/// blocks under FP32 scales have the element alone in `values`: a product must scale each 128 of its sum,
/// which MatMul does not do. FP8 per tensor has no `scales`, BF16 and FP32 have neither codes nor scales:
/// their `values` are x rounded to BF16. With `amax_given` x is not searched for a NaN: whoever found that
/// amax met it, and a given NaN or Inf is the fault that one found here would be.
struct Quantize {
  ConstRealView x_RC;
  QuantSpec spec;
  bool transpose = false;
  RandomKey random{};
  std::int64_t row_elements = 0;         ///< features a token has in the global batch; 0: C
  const float* amax_given = nullptr;     ///< use this amax instead of computing it
  float* amax = nullptr;                 ///< required; this and `scale` lie in the backend's memory
  float* scale = nullptr;                ///< required
  View<bf16> values{};                   ///< optional
  View<std::uint8_t> codes{}, scales{};  ///< optional, together
  View<float> row_amax{};                ///< required for row-scaled NVFP4, otherwise empty
  /// Optional, in the backend's memory: *fault = fault_id where amax is not finite, the spec says Detect and
  /// *fault is still negative, so that nobody waits for amax and the first faulty operand keeps its name.
  std::int64_t* fault = nullptr;
  std::int64_t fault_id = 0;
};

/// What Quantize::fault says, for implementations.
NIBBLE_HD void note_fault(NonFinite rule, float amax, std::int64_t* fault, std::int64_t fault_id) {
  const bool finite = amax - amax == 0;
  if (fault != nullptr && !finite && rule == NonFinite::Detect && *fault < 0) *fault = fault_id;
}

/// Sizes of what Quantize writes: `values` [rows, cols], `codes` [rows, code_cols], `scales` [rows,
/// scale_cols], the last in bytes. A column count is 0 where the format has no such output.
struct QuantizedShape {
  std::int64_t rows = 0, cols = 0;
  std::int64_t code_cols = 0, scale_cols = 0;
};

/// The sizes for a source [rows, cols]; throws Error{Runtime} for a spec that no quantiser implements.
QuantizedShape quantized_shape(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, bool transpose);

/// The factor that MatMul takes as inverse_range for two operands of these formats:
/// fl(1/7225344) for two NVFP4 operands, fl(1/2688) for one, 1 for none.
float gemm_inverse_range(Format a, Format b);

NIBBLE_OP(Quantize, quantize)

/// The values that codes, block scales and the tensor scale stand for, in FP32: [rows, cols] of the result
/// layout, block scales as bytes. NVFP4: ((float(scale) * amax) * fl(1/2688)) * code [TE]; under another
/// bound fl(1 / (6 bound)), and amax counts amax_factor fold. MXFP4: times `scale`, where it is
/// given.
struct Dequantize {
  Format format = Format::Nvfp4;
  View<const std::uint8_t> codes, scales;
  const float* amax = nullptr;   ///< the tensor's amax; unused by MX
  const float* scale = nullptr;  ///< FP8 per tensor: 1 / encode scale; MXFP4 under ThreeQuarters: 4/3
  View<float> out_RC;
  View<const float> row_amax{};  ///< row-scaled NVFP4: Quantize::row_amax, instead of amax
  std::uint16_t scale_bound = 448;
  float amax_factor = 1;  ///< NVFP4: amax_factor(spec) of the spec that it was quantised under
};

NIBBLE_OP(Dequantize, dequantize)

}  // namespace nibble
