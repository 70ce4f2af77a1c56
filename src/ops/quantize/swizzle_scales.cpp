// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/swizzle_scales.h"

#include "quant/swizzle.h"

namespace nibble {

std::int64_t swizzled_size(std::int64_t rows, std::int64_t scales_a_row) {
  return swizzle_padded_rows(rows) * swizzle_padded_columns(scales_a_row);
}

void check(const SwizzleScales& s) {
  check(s.scales_RB.rank() == 2 && (s.scales_RB.size(1) <= 1 || s.scales_RB.stride(1) == 1),
        "swizzle_scales: the scales must be a matrix with contiguous rows");
  const std::int64_t size = swizzled_size(s.scales_RB.size(0), s.scales_RB.size(1));
  check(s.out.rank() == 1 && s.out.size(0) == size && s.out.is_contiguous(),
        "swizzle_scales: out must hold {} contiguous bytes for scales [{}, {}], not {}", size,
        s.scales_RB.size(0), s.scales_RB.size(1), s.out.numel());
  check(reinterpret_cast<std::uintptr_t>(s.out.data()) % 16 == 0,
        "swizzle_scales: out must begin at a multiple of 16 bytes");
}

}  // namespace nibble
