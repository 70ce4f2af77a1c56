// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "data/bigram.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "data/sampler.h"
#include "data/source.h"
#include "data/token_shard.h"
#include "io/test_dir.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> documents(const DocumentRange& range) {
  std::vector<std::string> out;
  const auto source = open_source(range);
  while (const auto d = source->next()) out.emplace_back(*d);
  return out;
}

TEST(Source, NeighbouringPartsOfATextMeetAtALine) {
  const TestDir dir;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i * i) + "\n";
  write_file(dir / "a.txt", text);
  for (const double cut : {0.0, 0.001, 0.31, 0.5, 0.9, 0.9999, 1.0}) {
    std::string joined;
    for (const DocumentRange& range :
         {DocumentRange{dir / "a.txt", 0, cut}, DocumentRange{dir / "a.txt", cut, 1}}) {
      for (const std::string& d : documents(range)) {
        EXPECT_EQ(d.back(), '\n');
        joined += d;
      }
    }
    EXPECT_EQ(joined, text) << cut;
  }
}

TEST(Source, JsonlGivesOneDocumentALine) {
  const TestDir dir;
  write_file(dir / "a.jsonl", "{\"text\":\"one\"}\n\n{\"text\":\"two\\n\"}\n{\"text\":\"three\"}");
  EXPECT_THAT(documents({dir / "a.jsonl"}), ElementsAre("one", "two\n", "three"));
  write_file(dir / "a.jsonl", "{\"text\":\"one\"}\n{\"txt\":\"two\"}\n");
  EXPECT_THAT(error_of([&] { documents({dir / "a.jsonl"}); }),
              AllOf(HasSubstr("a.jsonl: line at byte 15"), HasSubstr("\"text\"")));
}

TEST(Source, MissingFileAndUnknownExtensionAreUsageErrors) {
  const TestDir dir;
  EXPECT_THAT(error_of([&] { open_source({dir / "absent.txt"}); }),
              AllOf(HasSubstr("absent.txt"), HasSubstr("Check the path")));
  write_file(dir / "a.parquet", "x");
  EXPECT_THAT(error_of([&] { open_source({dir / "a.parquet"}); }), HasSubstr(".jsonl"));
  EXPECT_THAT(error_of([&] { open_source({dir / "a.parquet", 0.5, 0.2}); }), HasSubstr("in order"));
}

TEST(Corpus, AustenHoldsOutItsEndAndNeverTrainsOnPersuasion) {
  const Corpus c = bundled_corpus("austen", NIBBLE_SOURCE_DIR "/data");
  EXPECT_EQ(c.train.size(), 5u);
  EXPECT_EQ(c.train.back().path, c.validation.front().path);
  EXPECT_EQ(c.train.back().end_fraction, c.validation.front().begin_fraction);
  for (const auto& part : c.train) EXPECT_NE(part.path.filename(), "persuasion.txt");
  for (const auto* split : {&c.train, &c.validation, &c.evaluation}) {
    for (const auto& part : *split) EXPECT_TRUE(fs::exists(part.path)) << part.path;
  }
  EXPECT_THAT(error_of([] { bundled_corpus("austin", "data"); }), HasSubstr("did you mean \"austen\""));
}

fs::path shard_of(const TestDir& dir, const std::string& name, const std::vector<std::vector<TokenId>>& docs,
                  int vocab) {
  TokenShardWriter writer(dir / name, vocab, 77);
  for (const auto& d : docs) writer.add_document(d);
  writer.finish();
  return dir / name;
}

TEST(TokenShard, NarrowAndWideIdsComeBackWithTheirDocuments) {
  const TestDir dir;
  for (const int vocab : {300, 65536, 65537, 200000}) {
    const TokenShard shard(shard_of(dir, "a.bin", {{1, 2, vocab - 1}, {}, {5}}, vocab));
    EXPECT_EQ(shard.size(), 4);
    EXPECT_EQ(shard.vocab_size(), vocab);
    EXPECT_EQ(shard.tokenizer_fingerprint(), 77u);
    EXPECT_THAT(shard.document_starts(), ElementsAre(0, 3, 3));
    std::vector<TokenId> ids(3);
    shard.copy(1, ids);
    EXPECT_THAT(ids, ElementsAre(2, vocab - 1, 5));
  }
  EXPECT_THAT(error_of([&] { shard_of(dir, "b.bin", {{300}}, 300); }), HasSubstr("outside the vocabulary"));
}

TEST(TokenShard, EveryFlippedBitAndEveryShortenedFileIsRefused) {
  const TestDir dir;
  const fs::path path = shard_of(dir, "a.bin", {{1, 2, 3}, {4}}, 300);
  const std::string good = read_file(path);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    flip_bit(path, bit);
    EXPECT_THAT(error_of([&] { TokenShard{path}; }), HasSubstr("a.bin")) << bit;
    flip_bit(path, bit);
  }
  for (std::size_t n = 0; n < good.size(); n += 5) {
    FileWriter(path).write(good.substr(0, n));
    EXPECT_NE(error_of([&] { TokenShard{path}; }), "") << n;
  }
}

TEST(TokenStream, ShardsReadAsOneSequence) {
  const TestDir dir;
  const TokenStream stream({shard_of(dir, "a.bin", {{0, 1, 2}}, 300), shard_of(dir, "b.bin", {{3}}, 300),
                            shard_of(dir, "c.bin", {{4, 5}, {6}}, 300)});
  EXPECT_THAT(stream.all(), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  std::vector<TokenId> middle(4);
  stream.copy(2, middle);
  EXPECT_THAT(middle, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(error_of([&] {
                TokenStream({dir / "a.bin", shard_of(dir, "d.bin", {{1}}, 301)});
              }),
              HasSubstr("another tokenizer"));
}

TEST(Permutation, IsABijectionForEverySizeAndDiffersByEpoch) {
  for (const std::uint64_t n : {1, 2, 3, 4, 5, 17, 64, 65, 1000, 4096}) {
    std::vector<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) seen.push_back(Permutation(n, 1, 0)(i));
    std::sort(seen.begin(), seen.end());
    for (std::uint64_t i = 0; i < n; ++i) ASSERT_EQ(seen[i], i) << n;
  }
  int same = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) same += Permutation(1000, 1, 0)(i) == Permutation(1000, 1, 1)(i);
  EXPECT_LT(same, 10);  // one is expected
}

TEST(Permutation, MeanDisplacementIsThatOfARandomOrder) {
  // |p(i) - i| averages n/3 for a random permutation, with a standard error of about 0.24 n / sqrt(n) here.
  const std::uint64_t n = 10000;
  double sum = 0;
  const Permutation p(n, 12345, 3);
  for (std::uint64_t i = 0; i < n; ++i) sum += std::abs(static_cast<double>(p(i)) - static_cast<double>(i));
  EXPECT_NEAR(sum / static_cast<double>(n * n), 1.0 / 3, 5 * 0.24 / 100);
}

/// 0, 1, 2, ... as one document: a token says where it was.
struct Counting {
  explicit Counting(int tokens) : stream({shard_of(dir, "a.bin", {numbers(tokens)}, 1000)}) {}
  static std::vector<TokenId> numbers(int n) {
    std::vector<TokenId> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  TestDir dir;
  TokenStream stream;
};

TEST(SampleOrder, AnEpochShowsEveryWindowOnceAndTargetsAreTheNextTokens) {
  const Counting data(101);
  const SampleOrder order(data.stream, 10, 7, 1024);
  EXPECT_EQ(order.samples_per_epoch(), 10);
  std::set<TokenId> first;
  for (int step = 0; step < 5; ++step) {
    const Batch b = order.batch(step, 2);
    EXPECT_EQ(b.sequences, 2);
    ASSERT_EQ(b.ids.size(), 20u);
    first.insert(b.ids[0]);
    first.insert(b.ids[10]);
    for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(b.targets[i], b.ids[i] + 1);
  }
  EXPECT_THAT(first, ElementsAre(0, 10, 20, 30, 40, 50, 60, 70, 80, 90));
  EXPECT_EQ(order.epochs(10, 2), 2.0);
}

TEST(SampleOrder, BatchDoesNotDependOnHowItIsSplitOrAskedFor) {
  const Counting data(500);
  const SampleOrder order(data.stream, 7, 3, 1024), again(data.stream, 7, 3, 1024),
      other(data.stream, 7, 4, 1024);
  const Batch whole = order.batch(11, 12);
  Batch parts;
  for (const auto& [first, count] : {std::pair{0, 5}, {5, 1}, {6, 6}}) {
    const Batch part = again.batch(11, 12, first, count);
    parts.ids.insert(parts.ids.end(), part.ids.begin(), part.ids.end());
    parts.hash += part.hash;
  }
  EXPECT_EQ(parts.ids, whole.ids);
  EXPECT_EQ(parts.hash, whole.hash);
  EXPECT_NE(order.batch(12, 12).hash, whole.hash);
  EXPECT_NE(other.batch(11, 12).hash, whole.hash);
}

TEST(SampleOrder, BatchHashSeesThePlaceOfASequence) {
  const Counting data(101);
  const SampleOrder order(data.stream, 10, 7, 1024);
  // The same two windows, the second one as slot 0 of a step of its own instead of slot 1.
  const Batch ab = order.batch(0, 2);
  std::uint64_t apart = 0;
  for (int i : {0, 1}) apart += order.batch(i, 1).hash;
  EXPECT_NE(ab.hash, apart);
}

TEST(SampleOrder, DataThatDoesNotFitIsAUsageErrorWithARemedy) {
  const Counting data(100);
  EXPECT_THAT(error_of([&] { SampleOrder(data.stream, 100, 1, 1024); }),
              AllOf(HasSubstr("longer than the data"), HasSubstr("shorter sequence")));
  EXPECT_EQ(error_of([&] { SampleOrder(data.stream, 99, 1, 1024); }), "");
  EXPECT_THAT(error_of([&] { SampleOrder(data.stream, 10, 1, 999); }),
              AllOf(HasSubstr("999"), HasSubstr("at least 1024")));
  EXPECT_THAT(error_of([&] { FixedSequences(data.stream, 10, 10, 1024); }), HasSubstr("holds 9"));
}

TEST(FixedSequences, AreSpreadEvenlyAndAlwaysTheSame) {
  const Counting data(101);
  const FixedSequences some(data.stream, 10, 5, 1024), all(data.stream, 10, 0, 1024);
  EXPECT_EQ(all.count(), 10);
  const Batch b = some.batch(0, 5);
  for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(b.ids[k * 10], static_cast<TokenId>(20 * k));
  EXPECT_EQ(some.hash(), some.batch(0, 2).hash + some.batch(2, 3).hash);
}

TEST(NgramBaseline, ReachesTheEntropyOfAMarkovChain) {
  // From each of 8 states one of two successors with equal chance: log 2 nats a token, and log 8 without
  // context.
  std::vector<TokenId> tokens = {0};
  std::uint64_t x = 88172645463325252ull;
  for (int i = 0; i < 60000; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    tokens.push_back(static_cast<TokenId>((tokens.back() * 2 + static_cast<int>(x >> 40 & 1)) % 8));
  }
  const auto all = std::span<const TokenId>(tokens);
  const NgramBaseline b = ngram_baseline(all.first(50000), all.subspan(50000), 16);
  EXPECT_NEAR(b.bigram, std::log(2.0), 0.01);
  EXPECT_NEAR(b.unigram, std::log(8.0), 0.01);
}

TEST(NgramBaseline, UnseenPairsAndTokensKeepAFiniteLoss) {
  const std::vector<TokenId> train(100, 1), heldout = {1, 2, 3, 2, 1};
  const NgramBaseline b = ngram_baseline(train, heldout, 8);
  EXPECT_TRUE(std::isfinite(b.bigram));
  EXPECT_TRUE(std::isfinite(b.unigram));
}

TEST(Prepare, TokensDecodeToTheTextAndTheCacheIsUsedAgain) {
  const TestDir dir;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the cat and the dog number " + std::to_string(i % 17) + "\n";
  write_file(dir / "a.txt", text);
  PrepareConfig config{.corpus = corpus_of_files("mine", {dir / "a.txt"}, {}), .cache = dir / "cache"};
  config.tokenizer.training.vocab_size = 300;
  const PreparedData first = prepare(config);
  EXPECT_FALSE(first.from_cache);
  std::string joined =
      first.tokenizer.decode(first.train.all(), true) + first.tokenizer.decode(first.validation.all(), true);
  EXPECT_EQ(joined, text);
  EXPECT_EQ(first.train.all().back(), first.tokenizer.eos_id());
  EXPECT_EQ(first.train_size.bytes + first.validation_size.bytes, static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(first.train_size.tokens, first.train.size());

  const PreparedData second = prepare(config);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.fingerprint, first.fingerprint);

  FileWriter(first.directory / "train-00000.bin", FileWriter::Mode::Append).write("x");
  EXPECT_FALSE(prepare(config).from_cache);  // damaged, so made anew

  config.tokenizer.kind = "bytes";
  const PreparedData bytes = prepare(config);
  EXPECT_NE(bytes.directory, first.directory);
  EXPECT_NE(bytes.fingerprint, first.fingerprint);
  write_file(dir / "a.txt", text + "one more line\n");
  EXPECT_FALSE(prepare(config).from_cache);  // changed text has another key
}

TEST(Prepare, ALoadedTokenizerGivesTheSameTokensAsTheTrainedOne) {
  const TestDir dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "some words and " + std::to_string(i % 13) + " more\n";
  write_file(dir / "a.txt", text);
  PrepareConfig config{.corpus = corpus_of_files("mine", {dir / "a.txt"}, {}), .cache = dir / "cache"};
  config.tokenizer.training.vocab_size = 290;
  const PreparedData trained = prepare(config);
  config.tokenizer = {.kind = "load", .path = trained.directory};
  const PreparedData loaded = prepare(config);
  EXPECT_EQ(loaded.train.all(), trained.train.all());
  EXPECT_EQ(loaded.fingerprint, trained.fingerprint);
  config.tokenizer = {.kind = "laod"};
  EXPECT_THAT(error_of([&] { prepare(config); }), HasSubstr("did you mean \"load\""));
}

}  // namespace
}  // namespace nibble
