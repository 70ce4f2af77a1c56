// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>

#include "layers/context.h"
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

/// Tests only: asks for everything that a step can measure, so that telemetry's quantisation runs too.
struct Everything : QuantObserver {
  OperandSums* operand(const LinearInfo& l, Gemm g, Operand o, const QuantSpec&) override {
    return &operands[fmt::format("{} {} {}", l.name, name(g), operand_name(g, o))];
  }
  DifferenceSums* product(const LinearInfo& l, Gemm g) override {
    return &products[fmt::format("{} {}", l.name, name(g))];
  }
  WeightSums* weight(const LinearInfo& l, const QuantSpec&) override { return &weights[l.name]; }
  std::map<std::string, OperandSums> operands;
  std::map<std::string, DifferenceSums> products;
  std::map<std::string, WeightSums> weights;
};

}  // namespace nibble
