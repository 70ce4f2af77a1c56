// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "io/safetensors.h"
#include "models/hf_names.h"
#include "models/param_store.h"

namespace nibble {

/// The model that DIR/config.json describes.
DecoderSpec read_hf_spec(const std::filesystem::path& directory);

/// Copies every weight of a Hugging Face folder into the FP32 master weights (BF16 files are widened
/// exactly). A tied head that the file repeats is skipped. Throws Error{Runtime} naming the tensor that is
/// missing, of another shape or type, or that the model does not have. Call refresh_copies afterwards.
void load_hf_weights(const Safetensors& file, const DecoderSpec& spec, const ParamStore& params);

/// Writes DIR/config.json and DIR/model.safetensors (FP32 master weights), which transformers loads as they
/// are. The folder exists; a tokenizer adds its own files beside them.
void save_hf_model(const std::filesystem::path& directory, const DecoderSpec& spec, const ParamStore& params,
                   const HfTokenIds& ids);

}  // namespace nibble
