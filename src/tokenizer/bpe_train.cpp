// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <queue>

#include "base/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"

namespace nibble {
namespace {

using Pair = std::pair<TokenId, TokenId>;

struct PairHash {
  std::size_t operator()(const Pair& p) const {
    const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(p.first)) << 32 |
                     static_cast<std::uint32_t>(p.second);
    return static_cast<std::size_t>((key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull);
  }
};

struct PairState {
  std::int64_t count = 0;
  std::vector<std::int32_t> words;  ///< where it occurs, or once did; may repeat
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
};

struct Word {
  std::vector<TokenId> ids;
  std::int64_t count;
};

/// Pair counts that are kept up to date by the changes of each merge, so a merge costs what it touches.
class Trainer {
 public:
  Trainer(BpeVocabulary& vocabulary, const PieceCounts& pieces) : vocabulary_(vocabulary) {
    for (std::size_t id = 0; id < vocabulary_.bytes.size(); ++id) {
      by_bytes_.emplace(vocabulary_.bytes[id], static_cast<TokenId>(id));
    }
    for (const auto& [piece, count] : pieces) {
      Word word{.ids = {}, .count = count};
      for (const char c : piece) word.ids.push_back(vocabulary_.byte_ids[static_cast<unsigned char>(c)]);
      const auto index = static_cast<std::int32_t>(words_.size());
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) add({word.ids[i], word.ids[i + 1]}, count, index);
      words_.push_back(std::move(word));
    }
    push_changed();
  }

  void run(std::size_t vocab_size, std::int64_t min_frequency) {
    while (vocabulary_.bytes.size() < vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[best.pair].count;
      if (best.count != now) {  // counts only fall behind a queued entry; growth queues a new one
        if (now > 0 && now < best.count) queue_.push({now, best.pair});
        continue;
      }
      if (best.count < std::max<std::int64_t>(min_frequency, 1)) break;
      merge(best.pair);
    }
  }

 private:
  void add(const Pair& pair, std::int64_t count, std::int32_t word) {
    PairState& state = pairs_[pair];
    state.count += count;
    if (count > 0) {
      if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
      changed_.push_back(pair);
    }
  }

  void push_changed() {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& pair : changed_) queue_.push({pairs_[pair].count, pair});
    changed_.clear();
  }

  void merge(const Pair& pair) {
    const std::string joined = vocabulary_.bytes[pair.first] + vocabulary_.bytes[pair.second];
    const auto [it, is_new] = by_bytes_.emplace(joined, static_cast<TokenId>(vocabulary_.bytes.size()));
    if (is_new) vocabulary_.bytes.push_back(joined);
    vocabulary_.merges.push_back({pair.first, pair.second, it->second});
    PairState& state = pairs_[pair];
    std::vector<std::int32_t> where = std::move(state.words);
    state.words.clear();
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    for (const std::int32_t w : where) merge_in(w, pair, it->second);
    // Overlapping occurrences ("aaa") leave a remainder in the count that no word has any more.
    pairs_[pair].count = 0;
    push_changed();
  }

  void merge_in(std::int32_t w, const Pair& pair, TokenId joined) {
    Word& word = words_[w];
    std::size_t out = 0;
    auto& ids = word.ids;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + 1 >= ids.size() || ids[i] != pair.first || ids[i + 1] != pair.second) {
        ids[out++] = ids[i];
        continue;
      }
      if (out > 0) {
        add({ids[out - 1], pair.first}, -word.count, w);
        add({ids[out - 1], joined}, word.count, w);
      }
      if (i + 2 < ids.size()) {
        add({pair.second, ids[i + 2]}, -word.count, w);
        add({joined, ids[i + 2]}, word.count, w);
      }
      ids[out++] = joined;
      ++i;
    }
    ids.resize(out);
  }

  BpeVocabulary& vocabulary_;
  StringMap<TokenId> by_bytes_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> changed_;
};

}  // namespace

BpeVocabulary train_bpe(const PieceCounts& pieces, int vocab_size,
                        const std::vector<std::string>& special_tokens, std::int64_t min_frequency) {
  const int least = static_cast<int>(special_tokens.size()) + 256;
  check_usage(vocab_size >= least,
              "a byte-level vocabulary needs at least {} entries ({} special tokens and 256 bytes), got {}",
              least, special_tokens.size(), vocab_size);
  BpeVocabulary vocabulary;
  vocabulary.bytes = special_tokens;
  std::array<int, 256> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [](int a, int b) { return byte_level_alphabet()[a] < byte_level_alphabet()[b]; });
  for (const int byte : order) {
    vocabulary.byte_ids[byte] = static_cast<TokenId>(vocabulary.bytes.size());
    vocabulary.bytes.emplace_back(1, static_cast<char>(byte));
  }
  Trainer(vocabulary, pieces).run(static_cast<std::size_t>(vocab_size), min_frequency);
  return vocabulary;
}

}  // namespace nibble
