// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/spec.h"

namespace nibble {

/// Floating point operations a token for forward and backward, recomputation never counted:
///   linears    6 N K, summed over the linears of the blocks
///   head       6 vocab d_model (the embedding lookup costs nothing)
///   attention  6 heads head_dim T an attention layer (causal: half of the T x T products)
///   scan       21 di state a Mamba-2 layer (Megatron's 7 di state forward, three times; convolution left
///   out)
/// For Llama-3.1-8B and T = 8192 this is 421.65 TFLOP a sample; MLPerf's constant is 421.59.
struct FlopsPerToken {
  double linears = 0, head = 0, attention = 0, scan = 0;
  double total() const { return linears + head + attention + scan; }
};

FlopsPerToken flops_per_token(const DecoderSpec& spec, std::int64_t sequence);

}  // namespace nibble
