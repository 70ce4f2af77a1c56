// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Regular expressions of well-known byte-level tokenizers, as their tokenizer.json spells them.
/// Sources: [TOKENIZERS], [LLAMA3], [QWEN], [TEKKEN].
extern const char* const kGpt2Regex;
extern const char* const kLlama3Regex;
extern const char* const kQwenRegex;
extern const char* const kTekkenRegex;

/// "gpt2", "llama3", "qwen" or "tekken" to its expression. Throws Error{Usage} listing the names.
std::string pre_tokenizer_regex(std::string_view name);

/// Cuts text into the pieces that merges never cross: all matches of a regular expression, and the gaps
/// between them. Several are applied one after the other, each to the pieces of the one before.
///
/// Runs on PCRE2 with its JIT. Hugging Face runs Oniguruma, whose \s differs from PCRE2's by U+180E alone; so
/// \s is spelled out as [\t-\r \x{85}\p{Z}] and \S as its complement, after which both give the same pieces.
/// \S inside brackets cannot be spelled out and is refused.
class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<std::string>& regexes);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// The pieces in order; their concatenation is `text`. `text` must be valid UTF-8 unless there is no
  /// expression.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Regex;
  std::vector<Regex> regexes_;
};

}  // namespace nibble
