// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/registry.h"

namespace nibble {

/// The rows that `model_presets()` joins. A new family adds its own.
std::vector<ModelPreset> llama_presets();
std::vector<ModelPreset> hybrid_presets();

}  // namespace nibble
