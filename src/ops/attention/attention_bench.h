// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// How fast causal attention of one shape ran, forward and backward.
struct AttentionRate {
  std::string name;                             ///< "B4 T4096 h16 kv8 d128"
  std::string forward_engine, backward_engine;  ///< "cudnn 9.19.0", "own (why)"
  double forward_seconds = 0, backward_seconds = 0;
  double forward_flops = 0, backward_flops = 0;  ///< of one call: 2 B H T^2 D, half of what a mask-less one
                                                 ///< has, and 2.5 times that
  double forward_flops_per_s() const { return forward_flops / forward_seconds; }
  double backward_flops_per_s() const { return backward_flops / backward_seconds; }
};

namespace cuda {

/// Times BF16 attention on views into a fused qkv, as training calls it: the shapes of llama-1.2b at a batch
/// of four and of llama-124m at 32. Fastest of many calls by the GPU's clock; about `seconds` in all.
std::vector<AttentionRate> measure_attention(Stream& stream, double seconds);

}  // namespace cuda
}  // namespace nibble
