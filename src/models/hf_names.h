// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec.h"

namespace nibble {

/// A Hugging Face tensor is rows [row_begin, row_begin + rows) of an internal parameter (its first
/// dimension). Bytes are the same row-major order, so import and export are copies; only the shape may be
/// written differently
/// ([C, 1, 4] for the convolution's [C, 4]).
struct HfSlice {
  std::string hf_name;   ///< as the file says it: "backbone.layers.3.mixer.q_proj.weight"
  std::string internal;  ///< "blocks.3.attention.qkv.weight"
  std::int64_t row_begin = 0, rows = 0;
  std::vector<std::int64_t> shape;  ///< of the Hugging Face tensor
};

/// All tensors of the model's file; together they cover every internal parameter exactly once.
std::vector<HfSlice> hf_slices(const DecoderSpec& spec);

/// The name transformers 5 gives the parameter inside the library, where it differs from the file's
/// ("model." for "backbone." in Nemotron-H). Golden gradients are named by it.
std::string hf_library_name(const DecoderSpec& spec, const std::string& hf_name);

/// Ids that config.json carries; empty ones are written as null.
struct HfTokenIds {
  std::int64_t bos = -1, eos = -1, pad = -1;  ///< negative: none
};

/// config.json for the model, readable by transformers 4 and 5. Throws Error{Usage} when no family can
/// express it.
std::string to_config_json(const DecoderSpec& spec, const HfTokenIds& ids);

/// Reads config.json (text). Accepts v4 and v5 spellings, a bare Infinity and {"__float__": "Infinity"}.
/// `where` names the file in errors. Throws Error{Usage} for a family or an option that is not supported.
DecoderSpec spec_from_config_json(const std::string& text, const std::string& where);

}  // namespace nibble
