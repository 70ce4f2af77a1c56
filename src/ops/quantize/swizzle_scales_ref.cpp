// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/quantize/swizzle_scales.h"
#include "quant/swizzle.h"

namespace nibble {

void ref::run(Stream&, const SwizzleScales& s) {
  const std::int64_t rows = s.scales_RB.size(0), cols = s.scales_RB.size(1);
  std::fill_n(s.out.data(), s.out.numel(), std::uint8_t{0});
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) s.out(swizzle_offset(i, j, cols)) = s.scales_RB(i, j);
}

}  // namespace nibble
