// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

/// What a mixer is made from, as plain data: models list them (models/spec.h), layers are built from them.
namespace nibble {

/// Llama 3's stretching of RoPE for long contexts: frequencies with wavelength above original/low_freq_factor
/// are divided by `factor`, those below original/high_freq_factor stay, the ones between are interpolated.
/// [LLAMA3]
struct Llama3Rope {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_positions = 8192;
  friend bool operator==(const Llama3Rope&, const Llama3Rope&) = default;
};

/// Half-split rotary embedding: pairs (i, i + head_dim / 2), frequency theta^(-2 i / head_dim) in FP32.
struct RopeSpec {
  double theta = 10000;
  std::optional<Llama3Rope> llama3;
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// Causal grouped-query attention, scale head_dim^-1/2. The fused QKV weight is
/// [(heads + 2 kv_heads) head_dim, d_model], rows in the order q | k | v, heads contiguous.
struct AttentionSpec {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false;
  std::optional<RopeSpec> rope;  ///< empty: no positional information, as in Nemotron-H
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

enum class Activation : std::uint8_t {
  SwiGlu,  ///< down(silu(gate x) * up x); the fused weight is [2 hidden, d_model], gate rows first
  Relu2,   ///< down(max(up x, 0)^2); the weight is [hidden, d_model]
};

struct MlpSpec {
  std::int64_t hidden = 0;
  Activation activation = Activation::SwiGlu;
  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

/// Mamba-2. Inner width di = heads * head_dim; `in` is [2 di + 2 groups state + heads, d_model] with rows in
/// the order z (di) | x (di) | B (groups state) | C (groups state) | dt (heads). [MAMBA2]
struct Mamba2Spec {
  std::int64_t heads = 0, head_dim = 0, groups = 1, state = 128;
  std::int64_t conv_kernel = 4;
  bool conv_bias = true;
  std::int64_t norm_groups = 1;  ///< of the gated norm: `groups` in Nemotron-H, 1 in Mamba-2
  std::int64_t chunk = 128;      ///< of the scan: a matter of speed, not of meaning
  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t conv_channels() const { return inner() + 2 * groups * state; }
  std::int64_t in_rows() const { return 2 * inner() + 2 * groups * state + heads; }
  friend bool operator==(const Mamba2Spec&, const Mamba2Spec&) = default;
};

}  // namespace nibble
