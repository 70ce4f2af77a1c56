// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/error.h"
#include "io/hash.h"
#include "numeric/philox.h"

namespace nibble {
namespace {

constexpr int kRounds = 8;
/// Sets this stream of random bits apart from others with the same seed (word 3 of the counter).
constexpr std::uint32_t kDataOrder = 0xDA7A0000u;

/// Windows of `length` tokens and one more as the last target.
std::int64_t windows(const TokenStream& stream, std::int64_t length) { return (stream.size() - 1) / length; }

void check_fits(const TokenStream& stream, std::int64_t length, std::int64_t model_vocab) {
  check_usage(length >= 1, "the sequence length must be at least 1, got {}", length);
  check_usage(stream.size() > length,
              "a sequence of {} tokens is longer than the data: it holds {} tokens, and a sequence needs one "
              "more than "
              "its length. Use a shorter sequence or more text",
              length, stream.size());
  check_usage(model_vocab >= stream.vocab_size(),
              "the model's vocabulary of {} is smaller than the data's: its token ids go up to {}. Set the "
              "vocabulary "
              "size to at least {}, or prepare the data with a smaller tokenizer",
              model_vocab, stream.vocab_size() - 1, (stream.vocab_size() + 127) / 128 * 128);
}

/// Puts the window at `begin` behind the sequences in `out`, as number `slot` of the whole.
void add_window(const TokenStream& stream, std::int64_t begin, std::int64_t slot, Batch& out) {
  // The slot goes in front of the tokens so that one hash covers both.
  std::vector<TokenId> window(static_cast<std::size_t>(out.length) + 3);
  window[0] = static_cast<TokenId>(slot);
  window[1] = static_cast<TokenId>(slot >> 32);
  const auto tokens = std::span(window).subspan(2);
  stream.copy(begin, tokens);
  out.ids.insert(out.ids.end(), tokens.begin(), tokens.end() - 1);
  out.targets.insert(out.targets.end(), tokens.begin() + 1, tokens.end());
  out.hash += xxh3_64(std::as_bytes(std::span(window)));
  ++out.sequences;
}

}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch)
    : n_(n),
      seed_(seed),
      epoch_(epoch),
      half_bits_(std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2)) {
  assert(n >= 1);
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  assert(i < n_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = i >> half_bits_, right = i & mask;
    for (int round = 0; round < kRounds; ++round) {
      const PhiloxBlock bits = philox(
          {seed_},
          {{static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(epoch_),
            static_cast<std::uint32_t>(epoch_ >> 32), kDataOrder | static_cast<std::uint32_t>(round)}});
      left ^= bits.word[0] & mask;
      std::swap(left, right);
    }
    i = left << half_bits_ | right;
  } while (i >= n_);  // the network permutes at most 4 n values, so few walks are needed
  return i;
}

SampleOrder::SampleOrder(const TokenStream& stream, std::int64_t sequence_length, std::uint64_t seed,
                         std::int64_t model_vocab)
    : stream_(stream), length_(sequence_length), samples_(0), seed_(seed) {
  check_fits(stream, sequence_length, model_vocab);
  samples_ = windows(stream, sequence_length);
}

std::int64_t SampleOrder::first_token(std::int64_t index) const {
  const auto n = static_cast<std::uint64_t>(samples_), i = static_cast<std::uint64_t>(index);
  return static_cast<std::int64_t>(Permutation(n, seed_, i / n)(i % n)) * length_;
}

Batch SampleOrder::batch(std::int64_t step, std::int64_t global_batch, std::int64_t first,
                         std::int64_t count) const {
  assert(step >= 0 && first >= 0 && first + count <= global_batch);
  Batch out{.length = length_};
  for (std::int64_t slot = first; slot < first + count; ++slot) {
    add_window(stream_, first_token(step * global_batch + slot), slot, out);
  }
  return out;
}

double SampleOrder::epochs(std::int64_t steps, std::int64_t global_batch) const {
  return static_cast<double>(steps) * static_cast<double>(global_batch) / static_cast<double>(samples_);
}

FixedSequences::FixedSequences(const TokenStream& stream, std::int64_t sequence_length, std::int64_t count,
                               std::int64_t model_vocab)
    : stream_(stream), length_(sequence_length) {
  check_fits(stream, sequence_length, model_vocab);
  const std::int64_t available = windows(stream, sequence_length);
  check_usage(
      count >= 0 && count <= available,
      "{} validation sequences of {} tokens were asked for, and the validation text holds {}. Ask for fewer, "
      "or for 0 to take all",
      count, sequence_length, available);
  const std::int64_t n = count == 0 ? available : count;
  for (std::int64_t k = 0; k < n; ++k) begins_.push_back(k * available / n * sequence_length);
}

Batch FixedSequences::batch(std::int64_t first, std::int64_t count) const {
  assert(first >= 0 && first + count <= this->count());
  Batch out{.length = length_};
  for (std::int64_t slot = first; slot < first + count; ++slot) add_window(stream_, begins_[slot], slot, out);
  return out;
}

std::uint64_t FixedSequences::hash() const { return batch(0, count()).hash; }

}  // namespace nibble
