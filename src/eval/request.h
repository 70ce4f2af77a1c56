// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace nibble {

/// Text to tokens as lm-eval-harness's causal models do it ([LMEVAL]).
class TaskEncoder {
 public:
  /// `tokenizer` outlives it. Throws Error{Runtime} for a tokenizer that has neither a beginning nor an end
  /// token, or whose template adds tokens after the text.
  explicit TaskEncoder(const Tokenizer& tokenizer);

  /// What stands before a text that has no context: the beginning token, or the end token where there is
  /// none.
  TokenId prefix() const { return prefix_; }
  /// With the tokens that the tokenizer's own template puts in front (Llama 3: <|begin_of_text|>), unless the
  /// text already begins with the prefix's text.
  std::vector<TokenId> encode(std::string_view text) const;
  /// Without them.
  std::vector<TokenId> encode_plain(std::string_view text) const { return tokenizer_.encode(text); }

 private:
  const Tokenizer& tokenizer_;
  TokenId prefix_ = 0;
  std::string prefix_text_;
  std::vector<TokenId> leading_;
};

/// Tokens of which the last `scored` are scored, each given all that stand before it.
struct Request {
  std::vector<TokenId> ids;
  std::int64_t scored = 0;
};

/// A context and its continuation:
/// - white space at the context's end moves to the front of the continuation;
/// - the whole text is encoded, and the context alone: what the whole has after as many tokens as the context
///   has is the continuation;
/// - an empty context is the prefix token, which a continuation that begins with it lends from there;
/// - of more than max_length + 1 tokens the last max_length + 1 stay.
/// Throws Error{Usage} when nothing is left to score, or the continuation alone is longer than the model.
Request pair_request(const TaskEncoder& encoder, std::string_view context, std::string_view continuation,
                     std::int64_t max_length);

/// A long text in pieces of max_length tokens, every token scored once: the first piece stands on the prefix
/// token, the others on the token before them, and a shorter last one on as many as fit (lm-eval's disjoint
/// rolling windows).
std::vector<Request> text_requests(const TaskEncoder& encoder, std::string_view text,
                                   std::int64_t max_length);

/// Bytes of white space, as Python's str.isspace sees it, at the end of a text.
std::size_t trailing_space(std::string_view text);
/// Unicode characters of a text that is UTF-8.
std::int64_t characters(std::string_view text);
/// Words as lm-eval counts them: pieces between runs of white space, empty ones at the ends included.
std::int64_t words(std::string_view text);

}  // namespace nibble
