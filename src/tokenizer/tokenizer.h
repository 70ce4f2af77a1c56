// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe.h"

namespace nibble {

/// A byte-level BPE vocabulary has 256 byte tokens at least, so every text has an encoding; a tokenizer
/// without merges gives one token a byte.
struct BpeTraining {
  int vocab_size = 2048;               ///< special tokens and bytes included
  std::string pre_tokenizer = "gpt2";  ///< see pre_tokenizer_regex
  std::vector<std::string> special_tokens = {"<|endoftext|>", "<|pad|>"};  ///< the first one ends documents
  std::int64_t min_frequency = 2;
};

/// Text to token ids and back, as the Hugging Face library `tokenizers` does it for byte-level BPE files
/// (GPT-2, Llama 3, Qwen, Tekken): added tokens are cut out first, then NFC where the file asks for it, then
/// regular expressions cut pieces, then merges. Immutable: one object serves several threads.
///
/// Non-goals: Unigram, WordPiece, byte fallback, other normalisers and pre-tokenizers (refused by name when
/// loading), template post-processing (encode adds no token of its own), offsets.
/// Source: [TOKENIZERS]. Golden ids: tests/golden/tokenizers.
class Tokenizer {
 public:
  /// One token a byte: id = byte, then <|endoftext|> = 256 and <|pad|> = 257. Takes any bytes, UTF-8 or not.
  static Tokenizer bytes();

  /// Learns merges from documents: `next` gives one at a time and an empty optional at the end.
  static Tokenizer train(const std::function<std::optional<std::string_view>()>& next,
                         const BpeTraining& training);

  /// tokenizer.json, or a folder that holds it. A tokenizer_config.json beside it names the end-of-document
  /// token; without one the usual names are looked for among the added tokens. Throws Error naming the file
  /// and what is not supported.
  static Tokenizer load(const std::filesystem::path& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Throws Error when `text` is not UTF-8 (a tokenizer without expressions and normaliser takes any bytes).
  std::vector<TokenId> encode(std::string_view text) const;
  /// The bytes that the tokens stand for, as they are. Throws Error for an id outside the vocabulary.
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special = false) const;
  /// The same as valid UTF-8: broken sequences become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  int vocab_size() const;                 ///< every id is below it
  int padded_vocab_size() const;          ///< rounded up to a multiple of 128: rows of the embedding
  std::optional<TokenId> eos_id() const;  ///< ends a document
  std::optional<TokenId> bos_id() const;  ///< begins one, where tokenizer_config.json names it
  std::optional<TokenId> token_to_id(std::string_view token) const;  ///< of an added token's text
  const std::string& name() const;  ///< "bytes", "bpe-2048", or the file's path

  /// tokenizer.json and tokenizer_config.json, which transformers' PreTrainedTokenizerFast loads. A loaded
  /// file is written back byte for byte.
  void save(const std::filesystem::path& directory) const;
  const std::string& json() const;    ///< the text of tokenizer.json
  std::uint64_t fingerprint() const;  ///< XXH3-64 of that text

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
