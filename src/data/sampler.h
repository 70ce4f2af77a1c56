// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_shard.h"

namespace nibble {

/// A permutation of 0 .. n-1 in O(1) memory: a balanced Feistel network whose round function is Philox keyed
/// by (seed, epoch, round), walked again while it leaves the range. Each (seed, epoch) gives another one.
/// Sources: [FEISTEL], [PHILOX].
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);
  std::uint64_t operator()(std::uint64_t i) const;  ///< i < n

 private:
  std::uint64_t n_, seed_, epoch_;
  int half_bits_;
};

/// Sequences of one step, or a part of them.
struct Batch {
  std::int64_t sequences = 0, length = 0;
  std::vector<TokenId> ids;      ///< [sequences, length]
  std::vector<TokenId> targets;  ///< [sequences, length]: the token after each of ids
  /// Sum modulo 2^64 of XXH3-64(slot, tokens) over the sequences, slot being the place in the global batch.
  /// Hashes of the parts of a step add up to the hash of the whole, however it was split.
  std::uint64_t hash = 0;
};

/// The training order, a pure function of (seed, index). Sample i of epoch e is window p = permutation_e(i):
/// tokens [p S, p S + S + 1). Windows do not overlap but for the last target; the tail shorter than S is
/// unused. Nothing here has state: resuming is asking for the next step.
class SampleOrder {
 public:
  /// `stream` must outlive this object. Throws Error{Usage} when a window is longer than the data, or when
  /// the model's vocabulary is smaller than the tokenizer's.
  SampleOrder(const TokenStream& stream, std::int64_t sequence_length, std::uint64_t seed,
              std::int64_t model_vocab);

  std::int64_t samples_per_epoch() const { return samples_; }
  std::int64_t sequence_length() const { return length_; }

  /// Where sample `index` (counted over all epochs) begins in the stream.
  std::int64_t first_token(std::int64_t index) const;

  /// Sequences [first, first + count) of step `step`, whose global batch is `global_batch` sequences.
  Batch batch(std::int64_t step, std::int64_t global_batch, std::int64_t first, std::int64_t count) const;
  Batch batch(std::int64_t step, std::int64_t global_batch) const {
    return batch(step, global_batch, 0, global_batch);
  }

  /// Passes over the data that `steps` steps make.
  double epochs(std::int64_t steps, std::int64_t global_batch) const;

 private:
  const TokenStream& stream_;
  std::int64_t length_, samples_;
  std::uint64_t seed_;
};

/// The same sequences at every evaluation of every arm: `count` windows spread evenly over the stream, in
/// order.
class FixedSequences {
 public:
  /// count = 0 takes all windows. Throws Error{Usage} when the stream holds fewer.
  FixedSequences(const TokenStream& stream, std::int64_t sequence_length, std::int64_t count,
                 std::int64_t model_vocab);

  std::int64_t count() const { return static_cast<std::int64_t>(begins_.size()); }
  Batch batch(std::int64_t first, std::int64_t count) const;
  std::uint64_t hash() const;  ///< of all sequences

 private:
  const TokenStream& stream_;
  std::int64_t length_;
  std::vector<std::int64_t> begins_;
};

}  // namespace nibble
