// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe.h"

namespace nibble {

/// A token that is found in the text before anything else happens.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;                 ///< decode may leave it out
  bool normalized = false;              ///< looked for after normalisation instead of before
  bool lstrip = false, rstrip = false;  ///< swallows the white space before, after it
};

/// What a tokenizer.json of the supported kind says.
struct HfTokenizer {
  bool nfc = false;
  std::vector<std::string> regexes;  ///< applied one after the other; "gpt2" style files have the GPT-2 one
  BpeVocabulary bpe;
  std::vector<AddedToken> added;
};

/// Reads the text of a tokenizer.json. Throws Error naming `source` and the part that is not supported.
HfTokenizer parse_hf_tokenizer(std::string_view text, const std::string& source);

/// Writes one that `tokenizers` loads. Merges go out as pairs.
std::string format_hf_tokenizer(const HfTokenizer& tokenizer);

/// tokenizer_config.json for transformers' PreTrainedTokenizerFast.
std::string format_hf_tokenizer_config(const std::optional<std::string>& eos,
                                       const std::optional<std::string>& pad);

}  // namespace nibble
