// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe.h"

#include <queue>

#include "base/error.h"

namespace nibble {
namespace {

std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// The pieces of a word as a linked list: merging relinks, so positions stay those of the first bytes.
struct Symbol {
  TokenId id;
  std::int32_t previous, next;  ///< -1 at the ends
};

struct Candidate {
  std::int32_t rank, position;
  TokenId left, right;  ///< to see later whether the symbols are still these
  bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : position > o.position; }
};

}  // namespace

Bpe::Bpe(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  merges_.reserve(vocabulary_.merges.size());
  std::int32_t rank = 0;
  for (const BpeMerge& m : vocabulary_.merges) {
    merges_.insert_or_assign(pair_key(m.left, m.right), Merge{rank++, m.result});
  }
  if (!vocabulary_.ignore_merges) return;
  for (std::size_t id = 0; id < vocabulary_.bytes.size(); ++id) {
    if (!vocabulary_.bytes[id].empty())
      whole_pieces_.emplace(vocabulary_.bytes[id], static_cast<TokenId>(id));
  }
}

void Bpe::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
  if (vocabulary_.ignore_merges) {
    if (const auto it = whole_pieces_.find(piece); it != whole_pieces_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  const auto n = static_cast<std::int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  for (std::int32_t i = 0; i < n; ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    const TokenId id = vocabulary_.byte_ids[byte];
    check(id >= 0, "tokenizer: the vocabulary has no token for byte 0x{:02x}", byte);
    symbols[i] = {id, i - 1, i + 1 < n ? i + 1 : -1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](std::int32_t position) {
    if (position < 0 || symbols[position].next < 0) return;
    const TokenId left = symbols[position].id, right = symbols[symbols[position].next].id;
    if (const auto it = merges_.find(pair_key(left, right)); it != merges_.end()) {
      queue.push({it->second.rank, position, left, right});
    }
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Symbol& s = symbols[c.position];
    if (s.id != c.left || s.next < 0 || symbols[s.next].id != c.right) continue;  // merged meanwhile
    Symbol& right = symbols[s.next];
    s.id = merges_.at(pair_key(c.left, c.right)).id;
    s.next = right.next;
    right.id = -1;  // dead: no candidate can name it
    if (s.next >= 0) symbols[s.next].previous = c.position;
    propose(s.previous);
    propose(c.position);
  }
  for (std::int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace nibble
