// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"

namespace nibble {

/// The fields a model is made from. Presets are rows of it, and the [model] section of a configuration is
/// laid over a row. Without `pattern` it is Llama-like with `blocks` blocks of attention and MLP.
struct ModelFields {
  std::optional<std::string> pattern;  ///< hybrid: one of M * - a block
  std::optional<std::int64_t> blocks, vocab_size, hidden, ffn, heads, kv_heads, head_dim, max_sequence;
  std::optional<std::string> activation;  ///< "swiglu" or "relu2"
  std::optional<bool> tied, qkv_bias;
  std::optional<double> rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
  std::optional<std::int64_t> rope_original_positions;
  std::optional<std::int64_t> mamba_heads, mamba_head_dim, mamba_groups, mamba_state, mamba_conv, mamba_chunk;
  std::optional<double> norm_eps, init_sigma;
  friend bool operator==(const ModelFields&, const ModelFields&) = default;
};

struct ModelPreset {
  std::string name;
  std::string summary;
  ModelFields fields;
  std::optional<int> bf16_first, bf16_last;  ///< blocks in BF16 that the source states for this model
};

const std::vector<ModelPreset>& model_presets();

/// The preset called `name`; throws Error{Usage} that names the nearest when there is none.
const ModelPreset& find_preset(std::string_view name);

/// `over` laid over `base`.
ModelFields merged(ModelFields base, const ModelFields& over);

/// The model that the fields describe, checked. Throws Error{Usage} naming a missing or impossible field.
DecoderSpec make_spec(const ModelFields& fields);

/// The model of a preset as it is.
DecoderSpec preset_spec(std::string_view name);

}  // namespace nibble
