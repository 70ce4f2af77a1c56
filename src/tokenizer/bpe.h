// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

/// Index of a token in the vocabulary. Signed and 32 bits wide, as the embedding and loss ops take it.
using TokenId = std::int32_t;

/// Lets maps keyed by std::string be searched with a std::string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

struct BpeMerge {
  TokenId left, right, result;
};

/// A byte-level BPE model: which bytes each token stands for, and the merges in order of rank.
struct BpeVocabulary {
  std::vector<std::string> bytes;       ///< by id; empty for an id that no token has
  std::array<TokenId, 256> byte_ids{};  ///< -1 where the vocabulary lacks the byte
  std::vector<BpeMerge> merges;         ///< rank = index
  bool ignore_merges = false;           ///< a piece that is a token is that token
};

/// Encodes single pieces. Starting from single bytes, the adjacent pair of lowest rank is merged, the
/// leftmost on ties, until no pair has a rank. Immutable, so one serves several threads.
class Bpe {
 public:
  explicit Bpe(BpeVocabulary vocabulary);

  /// Appends the tokens of one piece. Throws Error for a byte that the vocabulary lacks.
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;

  const BpeVocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::int32_t rank;
    TokenId id;
  };
  BpeVocabulary vocabulary_;
  std::unordered_map<std::uint64_t, Merge> merges_;
  StringMap<TokenId> whole_pieces_;  ///< only for ignore_merges
};

/// What a trainer needs to know of a corpus: each distinct piece and how often it occurs.
using PieceCounts = StringMap<std::int64_t>;

/// Learns merges as Hugging Face's BpeTrainer does: ids go first to `special_tokens`, then to the 256 bytes
/// in the order of the code points that stand for them, then to merges. The most frequent adjacent pair is
/// merged, on ties the one with the smaller (left id, right id); it stops at `vocab_size` or when no pair
/// occurs `min_frequency` times. Two merges can form the same token; the second then adds a merge but no id.
/// Throws Error{Usage} when vocab_size cannot hold the specials and the bytes.
BpeVocabulary train_bpe(const PieceCounts& pieces, int vocab_size,
                        const std::vector<std::string>& special_tokens, std::int64_t min_frequency);

}  // namespace nibble
