// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// How fast an op of a Mamba-2 layer ran, forward and backward, beside the bytes it cannot avoid.
struct SsdRate {
  std::string name;  ///< "scan B4 T4096 h64 p64 g8 n128", "conv B4 T4096 c6144 k4"
  double forward_seconds = 0, backward_seconds = 0;
  /// Each argument read or written once, states included: what a kernel that kept everything else on chip
  /// would move.
  double forward_bytes = 0, backward_bytes = 0;
  double forward_bytes_per_s() const { return forward_bytes / forward_seconds; }
  double backward_bytes_per_s() const { return backward_bytes / backward_seconds; }
};

namespace cuda {

/// Times BF16 convolution and scan of a layer of hybrid-1b, on views into the layer's matrices as training
/// calls them, at one and four sequences of 4096 tokens. Fastest of many calls by the GPU's clock; about
/// `seconds` in all.
std::vector<SsdRate> measure_ssd(Stream& stream, double seconds);

}  // namespace cuda
}  // namespace nibble
