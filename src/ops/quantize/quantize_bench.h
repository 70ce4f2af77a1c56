// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// How fast one quantiser ran beside a plain copy of the same source.
struct QuantizeRate {
  std::string name;         ///< "nvfp4 1x16 rne", "nvfp4 1x16 rht sr transposed", ...
  double bytes_per_s = 0;   ///< BF16 source bytes a second; amax given unless the name says "with amax"
  double memcpy_per_s = 0;  ///< bytes a second that memcpy copies of the same source, on one thread
  double share() const { return memcpy_per_s > 0 ? bytes_per_s / memcpy_per_s : 0; }
};

/// Times every kind of operand that training makes, on a BF16 matrix [rows, cols] of normal numbers, with the
/// stream's threads. Takes the best of several runs and about `seconds` in all.
std::vector<QuantizeRate> measure_quantizers(Stream& stream, std::int64_t rows, std::int64_t cols,
                                             double seconds);

}  // namespace nibble
