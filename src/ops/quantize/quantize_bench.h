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

/// How fast one quantiser ran on a GPU beside a copy from its memory to its memory.
struct QuantizeKernelRate {
  std::string name;    ///< "1x16 rne", "pair: 1x16 sr, rht sr transposed"; amax given unless it says so
  double seconds = 0;  ///< of one call
  double bytes = 0;    ///< that must be moved: x once for each pass, outputs once
  double copy_bytes_per_s = 0;  ///< read and written, of a copy of x
  double bytes_per_s() const { return bytes / seconds; }
  double share() const { return bytes_per_s() / copy_bytes_per_s; }
};

namespace cuda {

/// Times what training makes of a BF16 matrix [rows, cols] of normal numbers, sizes multiples of 16: values
/// ("emulated") and codes with scales, and the passes that find amaxes. By the GPU's clock, the fastest of
/// many calls, about `seconds` in all.
std::vector<QuantizeKernelRate> measure_quantize_kernels(Stream& stream, std::int64_t rows, std::int64_t cols,
                                                         double seconds);

}  // namespace cuda
}  // namespace nibble
