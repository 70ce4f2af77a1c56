// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "layers/mixer_spec.h"

namespace nibble {

using MixerSpec = std::variant<AttentionSpec, MlpSpec, Mamba2Spec>;

/// x + mixer(rms_norm(x)). A Llama block is two of them, a hybrid block is one.
struct SublayerSpec {
  int block = 0;  ///< the transformer block it belongs to, from 0
  MixerSpec mixer;
  friend bool operator==(const SublayerSpec&, const SublayerSpec&) = default;
};

/// A decoder-only language model as plain data: embedding, sublayers, final norm, head.
struct DecoderSpec {
  std::string family;  ///< "llama", "qwen2", "arcee", "nemotron_h", "mamba2": whose files it reads and writes
  std::int64_t vocab = 0, d_model = 0, max_seq = 0;
  double norm_eps = 1e-5;
  bool tied = false;  ///< the head is the embedding
  double init_sigma = 0.02;
  std::vector<SublayerSpec> sublayers;

  int blocks() const { return sublayers.empty() ? 0 : sublayers.back().block + 1; }
  friend bool operator==(const DecoderSpec&, const DecoderSpec&) = default;
};

/// "attention", "mlp" or "mamba".
const char* mixer_name(const MixerSpec& mixer);

/// The prefix of all names of sublayer `i`: "blocks.7.attention". Every internal name is made from it:
///   blocks.B.attention.{norm.weight, qkv.weight, qkv.bias, out.weight}
///   blocks.B.mlp.{norm.weight, up.weight, down.weight}
///   blocks.B.mamba.{norm.weight, in.weight, conv.weight [C, kernel], conv.bias, dt_bias, A_log, D,
///                   gated_norm.weight, out.weight}
/// beside embedding.weight, final_norm.weight and head.weight.
std::string sublayer_name(const DecoderSpec& spec, std::size_t i);

/// Hybrid pattern, a character a sublayer: M, *, - . A Llama-like model reads "*-*-...".
std::string pattern(const DecoderSpec& spec);

/// Throws Error{Usage} naming the field when the numbers cannot make a model (zero sizes, heads not a
/// multiple of kv_heads, heads not a multiple of groups, odd head_dim under RoPE, ...).
void check_spec(const DecoderSpec& spec);

}  // namespace nibble
