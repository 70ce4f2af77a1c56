// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file.h"
#include "io/json.h"
#include "io/test_dir.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pre_tokenizer.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kText =
    "the cat sat on the mat and the dog sat on the log, the end\n\nthe cat's hat isn't that; na\xc3\xafve "
    "caf\xc3\xa9\n";

Tokenizer trained(std::vector<std::string> documents, const BpeTraining& training = {}) {
  std::size_t i = 0;
  return Tokenizer::train(
      [&]() -> std::optional<std::string_view> {
        if (i == documents.size()) return std::nullopt;
        return documents[i++];
      },
      training);
}

TEST(ByteLevel, EveryByteHasItsOwnCharacterAndComesBack) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  EXPECT_EQ(to_byte_level(" \n"), "\xc4\xa0\xc4\x8a");  // U+0120 and U+010A
  EXPECT_FALSE(from_byte_level("a b").has_value());
}

TEST(ByteLevel, InvalidUtf8IsFoundAndReplaced) {
  EXPECT_EQ(first_invalid_utf8("a\xc3\xa9\xf0\x9f\x8e\x89"), std::string_view::npos);
  for (const char* bad : {"a\x80", "a\xc0\xaf", "a\xed\xa0\x80", "a\xf4\x90\x80\x80", "a\xe2\x82"}) {
    EXPECT_EQ(first_invalid_utf8(bad), 1u);
  }
  EXPECT_EQ(replace_invalid_utf8("a\xe2\x82z\xff"), "a\xef\xbf\xbdz\xef\xbf\xbd");
}

TEST(BytesTokenizer, IdIsTheByteAndAnyBytesComeBack) {
  const Tokenizer t = Tokenizer::bytes();
  EXPECT_EQ(t.vocab_size(), 258);
  EXPECT_EQ(t.padded_vocab_size(), 384);
  EXPECT_EQ(t.eos_id(), 256);
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const auto ids = t.encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(ids[b], b);
  EXPECT_EQ(t.decode_bytes(ids), all);
  EXPECT_THAT(t.encode("a<|endoftext|>b"), ElementsAre('a', 256, 'b'));
  EXPECT_EQ(t.decode(t.encode("a<|endoftext|>b"), true), "ab");
}

TEST(Tokenizer, SavedAndLoadedEncodesTheSame) {
  const TestDir dir;
  const Tokenizer bpe = trained({kText, kText}, {.vocab_size = 300, .pre_tokenizer = "llama3"});
  const Tokenizer bytes = Tokenizer::bytes();
  for (const Tokenizer* t : {&bpe, &bytes}) {
    t->save(dir.path());
    const Tokenizer back = Tokenizer::load(dir.path());
    EXPECT_EQ(back.encode(kText + "<|endoftext|>"), t->encode(kText + "<|endoftext|>"));
    EXPECT_EQ(back.vocab_size(), t->vocab_size());
    EXPECT_EQ(back.eos_id(), t->eos_id());
    EXPECT_EQ(back.fingerprint(), t->fingerprint());
  }
  EXPECT_NE(bpe.fingerprint(), bytes.fingerprint());
}

TEST(TrainBpe, MergesTheMostFrequentPairAndBreaksTiesByTheSmallerIds) {
  // Counts: (a,b) 3, (b,c) 3, (c,d) 1. The tie goes to the smaller left id, so "ab" is first, then "abc".
  PieceCounts pieces = {{"abc", 2}, {"ab", 1}, {"bc", 1}, {"cd", 1}};
  const BpeVocabulary v = train_bpe(pieces, 1000, {"<s>"}, 2);
  EXPECT_EQ(v.bytes[0], "<s>");
  EXPECT_EQ(v.bytes[1], "!");  // the alphabet in the order of its characters begins with byte 33
  ASSERT_EQ(v.merges.size(), 2u);
  EXPECT_EQ(v.bytes[v.merges[0].result], "ab");
  EXPECT_EQ(v.bytes[v.merges[1].result], "abc");
  EXPECT_EQ(v.bytes.size(), 1u + 256 + 2);  // (b,c) is left with one occurrence, below the frequency of 2
}

TEST(TrainBpe, OverlappingPairsMergeFromTheLeft) {
  const BpeVocabulary v = train_bpe({{"aaaaa", 4}}, 259, {}, 2);
  ASSERT_EQ(v.bytes.size(), 259u);
  EXPECT_EQ(v.bytes[256],
            "aa");  // then the word is aa aa a: both (aa,aa) and (aa,a) occur 4 times, "a" has the smaller id
  EXPECT_EQ(v.bytes[257], "aaa");
  std::vector<TokenId> out;
  Bpe(v).encode_piece("aaaaa", out);
  std::string back;
  for (const TokenId id : out) back += v.bytes[id];
  EXPECT_EQ(back, "aaaaa");
}

TEST(TrainBpe, EncodingReplaysTheTrainingMerges) {
  const Tokenizer t = trained({kText, kText, kText}, {.vocab_size = 320});
  EXPECT_LE(t.vocab_size(), 320);
  EXPECT_EQ(t.decode(t.encode(kText)), kText);
  EXPECT_LT(t.encode(kText).size(), kText.size() / 2);
  EXPECT_EQ(t.encode(" the").size(), 1u);
  EXPECT_EQ(t.eos_id(), 0);
}

TEST(TrainBpe, VocabularyTooSmallForBytesIsAUsageError) {
  EXPECT_THAT(error_of([] { trained({kText}, {.vocab_size = 200}); }), HasSubstr("at least 258"));
  EXPECT_THAT(error_of([] { trained({kText}, {.pre_tokenizer = "gpt3"}); }), HasSubstr("gpt2"));
}

TEST(Tokenizer, TextThatIsNotUtf8IsNamedWithItsPlace) {
  const Tokenizer t = trained({kText});
  EXPECT_THAT(error_of([&] { t.encode("ab\xff"); }), HasSubstr("not UTF-8 at byte 2"));
}

TEST(Tokenizer, LongestAddedTokenWinsAndStripsSwallowSpace) {
  const TestDir dir;
  Json json = Json::parse(Tokenizer::bytes().json());
  const auto token = [](int id, const char* content, bool strip) {
    return Json{{"id", id},           {"content", content}, {"special", false},
                {"normalized", true}, {"lstrip", strip},    {"rstrip", strip}};
  };
  json["added_tokens"].push_back(token(258, "<a", false));
  json["added_tokens"].push_back(token(259, "<a>", true));
  write_file(dir / "tokenizer.json", json.dump());
  const Tokenizer t = Tokenizer::load(dir / "tokenizer.json");
  EXPECT_THAT(t.encode("x \t<a> \xe2\x80\x83y<ab"), ElementsAre('x', 259, 'y', 258, 'b'));
}

/// The bytes tokenizer's file with one change.
std::string error_with(const std::function<void(Json&)>& change) {
  const TestDir dir;
  Json json = Json::parse(Tokenizer::bytes().json());
  change(json);
  write_file(dir / "tokenizer.json", json.dump());
  return error_of([&] { Tokenizer::load(dir / "tokenizer.json"); });
}

TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(error_with([](Json&) {}), "");
  EXPECT_THAT(error_with([](Json& j) { j["model"]["type"] = "Unigram"; }), HasSubstr("Unigram"));
  EXPECT_THAT(error_with([](Json& j) { j["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(error_with([](Json& j) { j["model"]["byte_fallback"] = true; }), HasSubstr("byte_fallback"));
  EXPECT_THAT(error_with([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), HasSubstr("Lowercase"));
  EXPECT_THAT(error_with([](Json& j) {
                j["pre_tokenizer"] = {{"type", "Metaspace"}};
              }),
              HasSubstr("Metaspace"));
  EXPECT_THAT(error_with([](Json& j) { j["pre_tokenizer"] = nullptr; }), HasSubstr("pre-tokenizer"));
  EXPECT_THAT(error_with([](Json& j) { j["added_tokens"][0]["single_word"] = true; }),
              HasSubstr("single_word"));
  EXPECT_THAT(error_with([](Json& j) { j["model"]["merges"] = {"a zz"}; }), HasSubstr("\"zz\""));
}

TEST(Tokenizer, BothSpellingsOfMergesMeanTheSame) {
  const TestDir dir;
  const Tokenizer pairs = trained({kText, kText}, {.vocab_size = 300});
  Json json = Json::parse(pairs.json());
  Json strings = Json::array();
  for (const Json& m : json["model"]["merges"]) {
    strings.push_back(m[0].get<std::string>() + " " + m[1].get<std::string>());
  }
  json["model"]["merges"] = strings;
  write_file(dir / "tokenizer.json", json.dump());
  EXPECT_EQ(Tokenizer::load(dir / "tokenizer.json").encode(kText), pairs.encode(kText));
}

TEST(PreTokenizer, PiecesAddUpToTheTextAndSpacesFollowOniguruma) {
  for (const char* name : {"gpt2", "llama3", "qwen", "tekken"}) {
    const PreTokenizer p({pre_tokenizer_regex(name)});
    const std::string text = "Hello  world\u180e 123\u2003\n\n x\u0085y";
    std::string joined;
    for (const auto piece : p.split(text)) joined += piece;
    EXPECT_EQ(joined, text);
  }
  const PreTokenizer p({pre_tokenizer_regex("gpt2")});
  // U+180E is no space here, so it stands with the other symbols in one piece.
  EXPECT_THAT(p.split("\u180e!"), ElementsAre("\u180e!"));
}

}  // namespace
}  // namespace nibble
