// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/quantize/quantize.h"

namespace nibble {

/// The two quantised copies of one matrix that the GEMMs of a linear read: of its rows, and of its transpose.
/// The result of each is what Quantize writes, byte for byte; a GPU reads x once for both, and once before
/// for those amaxes that are not given.
///
///   source       x[R,C], FP32 or BF16, row-major (rows may be strided)
///   rows         Quantize with transpose = false: [R, C]
///   transposed   Quantize with transpose = true: [C, R]
///   row_elements, fault   as in Quantize, for both; the fault of the rows is noted first
///
/// Throws Error{Runtime} for shapes that do not fit.
struct QuantizePair {
  struct Copy {
    QuantSpec spec;
    RandomKey random{};
    const float* amax_given = nullptr;
    float* amax = nullptr;   ///< required
    float* scale = nullptr;  ///< required
    View<bf16> values{};
    View<std::uint8_t> codes{}, scales{};
    View<float> row_amax{};
    std::int64_t fault_id = 0;
  };
  ConstRealView x_RC;
  Copy rows, transposed;
  std::int64_t row_elements = 0;
  std::int64_t* fault = nullptr;
};

/// The two ops that the pair stands for.
Quantize row_copy(const QuantizePair& pair);
Quantize transposed_copy(const QuantizePair& pair);

NIBBLE_OP(QuantizePair, quantize_pair)

}  // namespace nibble
