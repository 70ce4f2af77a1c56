// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/corpus.h"
#include "data/token_shard.h"
#include "tokenizer/tokenizer.h"

namespace nibble {

/// Which tokenizer a run uses.
struct TokenizerChoice {
  std::string kind = "bpe";    ///< "bytes", "bpe" (trained on the training split) or "load"
  BpeTraining training;        ///< for "bpe"
  std::filesystem::path path;  ///< for "load": tokenizer.json or a folder with it
};

struct PrepareConfig {
  Corpus corpus;
  TokenizerChoice tokenizer;
  std::filesystem::path cache = ".cache/data";
  std::int64_t tokens_per_shard = std::int64_t{1} << 28;  ///< a shard ends with the document that passes this
};

struct SplitSize {
  std::int64_t documents = 0, tokens = 0,
               bytes = 0;  ///< bytes of text; tokens include one end token a document
};

/// Text as token files, with the tokenizer that made them.
struct PreparedData {
  std::filesystem::path directory;
  bool from_cache = false;
  Tokenizer tokenizer;
  TokenStream train, validation;
  SplitSize train_size, validation_size, evaluation_size;
  /// Where the evaluation split's shards are (none when the corpus has none).
  std::vector<std::filesystem::path> evaluation_shards;
  std::uint64_t fingerprint =
      0;  ///< of the training and validation tokens: equal in both arms of a comparison
};

/// Tokenises a corpus, every document followed by the tokenizer's end token, into
/// CACHE/NAME-TOKENIZER-KEY/{tokenizer.json, tokenizer_config.json, SPLIT-NNNNN.bin, provenance.json}. KEY
/// hashes the bytes of the files, the split and the tokenizer, so a change of any makes another folder. A
/// folder that is there and intact is used as it is; a damaged one is made anew. Throws Error naming the file
/// and what to do.
PreparedData prepare(const PrepareConfig& config);

/// A folder that prepare() made, here or elsewhere, every byte checked. The text is not needed. Throws Error
/// naming the folder and what is wrong with it.
PreparedData open_prepared(const std::filesystem::path& directory);

}  // namespace nibble
