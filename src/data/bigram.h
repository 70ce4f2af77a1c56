// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tokenizer/bpe.h"

namespace nibble {

/// What counting alone reaches on the same tokens: a trained model that has learned something is below it.
///
///   p(b | a) = w(a) c(a, b) / c(a) + (1 - w(a)) p(b),   p(b) = (c(b) + 1) / (N + V)
///
/// c counts the training tokens, V is the vocabulary. The weight w(a) depends on c(a) alone, one value for
/// each power of two. It is fitted by expectation maximisation on the last tenth of the training tokens with
/// counts of the first nine tenths; the counts are then taken from all of them. The held-out tokens are only
/// scored.
struct NgramBaseline {
  double unigram = 0;           ///< nats a token, by p(b)
  double bigram = 0;            ///< nats a token, by p(b | a)
  std::vector<double> weights;  ///< w, by floor(log2 c(a))
};

/// Scores every token of `heldout` but the first. Throws Error when train holds fewer than 20 tokens, or
/// heldout fewer than 2.
NgramBaseline ngram_baseline(std::span<const TokenId> train, std::span<const TokenId> heldout,
                             int vocab_size);

}  // namespace nibble
