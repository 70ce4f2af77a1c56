// SPDX-License-Identifier: Apache-2.0
#include "data/bigram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <unordered_map>

#include "base/error.h"

namespace nibble {
namespace {

constexpr int kBuckets = 40;

class Counts {
 public:
  Counts(std::span<const TokenId> tokens, int vocab_size)
      : single_(static_cast<std::size_t>(vocab_size)),
        first_(single_.size()),
        total_(static_cast<double>(tokens.size())) {
    for (const TokenId t : tokens) ++single_[t];
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      ++first_[tokens[i - 1]];
      ++pairs_[key(tokens[i - 1], tokens[i])];
    }
  }
  double unigram(TokenId b) const {
    return (single_[b] + 1) / (total_ + static_cast<double>(single_.size()));
  }
  /// c(a, b) / c(a), or 0 where a was never seen.
  double bigram(TokenId a, TokenId b) const {
    const auto it = pairs_.find(key(a, b));
    return it == pairs_.end() ? 0 : it->second / first_[a];
  }
  int bucket(TokenId a) const { return std::bit_width(static_cast<std::uint64_t>(first_[a])); }

 private:
  static std::uint64_t key(TokenId a, TokenId b) {
    return static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
  }
  std::vector<double> single_, first_;
  std::unordered_map<std::uint64_t, double> pairs_;
  double total_;
};

/// Each pass sets a bucket's weight to the share of its tokens that the bigram part explains.
std::vector<double> fit_weights(const Counts& counts, std::span<const TokenId> tokens) {
  constexpr int kPasses = 50;
  std::vector<double> weights(kBuckets, 0.5);
  weights[0] = 0;  // a was never seen: there is nothing to weigh
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<double> explained(kBuckets), all(kBuckets);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      const int bucket = counts.bucket(tokens[i - 1]);
      const double w = weights[bucket];
      const double by_bigram = w * counts.bigram(tokens[i - 1], tokens[i]);
      explained[bucket] += by_bigram / (by_bigram + (1 - w) * counts.unigram(tokens[i]));
      all[bucket] += 1;
    }
    for (int k = 1; k < kBuckets; ++k) {
      // Kept off 1, so that a pair never seen has some probability. A bucket without tokens takes the weight
      // below it: with all the counts, the most frequent tokens may move up to one that the fit never saw.
      if (all[k] > 0)
        weights[k] = std::min(explained[k] / all[k], 0.999);
      else if (k > 1)
        weights[k] = weights[k - 1];
    }
  }
  return weights;
}

}  // namespace

NgramBaseline ngram_baseline(std::span<const TokenId> train, std::span<const TokenId> heldout,
                             int vocab_size) {
  check(train.size() >= 20 && heldout.size() >= 2,
        "bigram baseline: {} training and {} held-out tokens are too few", train.size(), heldout.size());
  for (const auto part : {train, heldout}) {
    for (const TokenId t : part)
      check(t >= 0 && t < vocab_size, "bigram baseline: id {} is outside the vocabulary", t);
  }
  const std::size_t cut = train.size() - train.size() / 10;
  NgramBaseline result;
  result.weights = fit_weights(Counts(train.first(cut), vocab_size), train.subspan(cut));
  const Counts counts(train, vocab_size);
  for (std::size_t i = 1; i < heldout.size(); ++i) {
    const double p = counts.unigram(heldout[i]);
    const double w = result.weights[counts.bucket(heldout[i - 1])];
    result.unigram -= std::log(p);
    result.bigram -= std::log(w * counts.bigram(heldout[i - 1], heldout[i]) + (1 - w) * p);
  }
  result.unigram /= static_cast<double>(heldout.size() - 1);
  result.bigram /= static_cast<double>(heldout.size() - 1);
  return result;
}

}  // namespace nibble
