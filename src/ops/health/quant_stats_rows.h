// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "numeric/e2m3.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize.h"

namespace nibble {

/// Whether a code is the largest magnitude of its format.
NIBBLE_HD constexpr bool is_largest(Format format, std::uint8_t code) {
  switch (format) {
    case Format::Nvfp4:
    case Format::Mxfp4:
      return (code & 7) == 7;
    case Format::Mxfp6E2M3:
    case Format::Mxfp6E3M2:
      return (code & 0x1F) == E2M3::kMaxBits;
    case Format::Mxfp8E4M3:
    case Format::Fp8E4M3:
    case Format::Fp8BlockE4M3:
    case Format::Fp8BlockFp32E4M3:
      return (code & 0x7F) == E4M3::kMaxBits;
    case Format::Mxfp8E5M2:
    case Format::Fp8E5M2:
      return (code & 0x7F) == E5M2::kMaxBits;
    case Format::Fp32:
    case Format::Bf16:
      break;
  }
  return false;
}

/// Values of the result's row, which a rotation may have padded.
std::int64_t result_cols(const MeasureQuant& m);

/// How the codes of `m` decode into `out` [rows, cols of the result].
Dequantize decoding_of(const MeasureQuant& m, const View<float>& out);

/// Statistics of rows [begin, end), begin a multiple of rows_of_a_strip; `decoded` holds all rows of the
/// result, and is empty where the format has no codes. The tensor's amax and scale are not set.
QuantStats measure_rows(const MeasureQuant& m, const View<const float>& decoded, std::int64_t begin,
                        std::int64_t end);

/// The tensor's amax and scale, which lie in host memory.
void set_tensor_numbers(const MeasureQuant& m, QuantStats& s);

}  // namespace nibble
