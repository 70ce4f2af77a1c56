// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "io/file.h"
#include "io/hash.h"
#include "tokenizer/bpe.h"

namespace nibble {

/// A file of token ids. Little-endian:
///   0   8  "NIBTOK1\n"
///   8   4  version 1                   12  4  bytes a token: 2 when the vocabulary fits, else 4
///   16  8  tokens                      24  8  documents
///   32  8  vocabulary size             40  8  tokenizer fingerprint (XXH3-64 of its tokenizer.json)
///   48  8  XXH3-64 of all that follows 56  8  XXH3-64 of the 56 bytes before
///   64     tokens, padded with zeros to a multiple of 8, then the first token of each document as u64
class TokenShardWriter {
 public:
  TokenShardWriter(const std::filesystem::path& path, int vocab_size, std::uint64_t tokenizer_fingerprint);
  /// One document, with its end token if it is to have one. Throws Error for an id outside the vocabulary.
  void add_document(std::span<const TokenId> ids);
  void finish();
  std::int64_t tokens() const { return tokens_; }

 private:
  void append(std::span<const std::byte> bytes);

  FileWriter file_;
  Xxh3 hash_;
  int vocab_size_, width_;
  std::uint64_t fingerprint_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint64_t> starts_;
};

class TokenShard {
 public:
  /// Maps and checks the file, every byte of it. Throws Error naming it.
  explicit TokenShard(const std::filesystem::path& path);

  std::int64_t size() const { return tokens_; }
  int vocab_size() const { return vocab_size_; }
  std::uint64_t tokenizer_fingerprint() const { return fingerprint_; }
  std::uint64_t content_hash() const { return content_hash_; }
  std::span<const std::uint64_t> document_starts() const { return starts_; }
  void copy(std::int64_t begin, std::span<TokenId> out) const;

 private:
  MappedFile file_;
  std::int64_t tokens_ = 0;
  int vocab_size_ = 0, width_ = 0;
  std::uint64_t fingerprint_ = 0, content_hash_ = 0;
  std::span<const std::uint64_t> starts_;
};

/// Shards one after the other, as a single sequence of tokens.
class TokenStream {
 public:
  /// Throws Error when the shards come from different tokenizers.
  explicit TokenStream(const std::vector<std::filesystem::path>& shards);

  std::int64_t size() const { return size_; }
  int vocab_size() const { return vocab_size_; }
  void copy(std::int64_t begin, std::span<TokenId> out) const;  ///< [begin, begin + out.size()) within size()
  std::vector<TokenId> all() const;
  std::uint64_t fingerprint() const { return fingerprint_; }  ///< of the tokens and of the tokenizer

 private:
  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> begins_;
  std::int64_t size_ = 0;
  int vocab_size_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace nibble
