// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry.h"

namespace nibble {

/// Tests only: a Llama-like model whose step takes milliseconds.
inline DecoderSpec tiny_model(std::int64_t blocks, std::int64_t vocab, std::int64_t max_sequence) {
  return make_spec({.blocks = blocks,
                    .vocab_size = vocab,
                    .hidden = 32,
                    .ffn = 64,
                    .heads = 2,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .max_sequence = max_sequence,
                    .activation = "relu2",
                    .rope_theta = 10000});
}

}  // namespace nibble
