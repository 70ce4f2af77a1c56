// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/source.h"

namespace nibble {

/// Which documents a run learns from, is watched on, and is judged on. A split is a list of parts of files,
/// so that held-out text is never a neighbour of training text by chance.
struct Corpus {
  std::string name;
  std::vector<DocumentRange> train, validation;
  std::vector<DocumentRange> evaluation;  ///< never looked at while training; may be empty
};

/// "austen": the six bundled novels; train = four novels and the first 90 % of Northanger Abbey, validation =
/// its last 10 %, evaluation = Persuasion. `root` is the folder that holds austen/. Throws Error{Usage} for
/// another name, listing those known.
Corpus bundled_corpus(std::string_view name, const std::filesystem::path& root);

/// The user's own files. Without `validation`, the last `held_out` of the last training file is held out.
Corpus corpus_of_files(const std::string& name, const std::vector<std::filesystem::path>& train,
                       const std::vector<std::filesystem::path>& validation, double held_out = 0.1);

}  // namespace nibble
