// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "ops/gemm/lt_product.h"

namespace nibble {

/// Which of the algorithms that cuBLASLt proposes for a product is taken, where a measurement said otherwise
/// than the library's own order. Kept in a file, because a choice by the clock would differ from run to run
/// and with it the last bits (docs/adr/0012-gemm-choice.md).
///
/// The text: a first line that names the library's version and the card, then a line a product.
struct GemmTuning {
  std::string machine;               ///< "cublasLt 130100 sm 90 multiprocessors 132"
  std::map<LtProduct, int> choices;  ///< place in the library's order; what is absent takes place 0

  std::string text() const;
  /// Throws Error{Usage} with the line that is not of this form.
  static GemmTuning parse(std::string_view text);
  friend bool operator==(const GemmTuning&, const GemmTuning&) = default;
};

/// Takes these choices on `device` from now on; call it before the first product. Throws Error{Usage} when
/// they were measured with another library or card, or when this is no cuda device.
void use_gemm_tuning(Device& device, const GemmTuning& tuning);

/// Measures what the library proposes for every product that the device has multiplied so far, on memory of
/// its own, takes the fastest from now on and returns the choices. A proposal replaces an earlier one only
/// when it is at least 2 % faster. Takes about `seconds` a product and waits for the device.
GemmTuning tune_gemms(Stream& stream, double seconds = 0.05);

}  // namespace nibble
