// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace nibble {

/// Throws a usage error unless `run` is the folder of a comparison with a verdict. The text tells apart a
/// single training run, a comparison that is not finished and a folder that is neither, each with its remedy.
void require_comparison(const std::filesystem::path& run);

}  // namespace nibble
