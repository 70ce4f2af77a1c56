// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "eval/evaluate.h"
#include "eval/model.h"
#include "eval/results.h"
#include "io/file.h"
#include "io/json.h"
#include "io/test_dir.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TokenId kEnd = 256;  ///< of the byte tokenizer

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

struct Encoded {
  Tokenizer tokenizer = Tokenizer::bytes();
  TaskEncoder encoder{tokenizer};
};

TEST(PairRequest, TheContinuationIsWhatFollowsTheContext) {
  const Encoded e;
  const Request r = pair_request(e.encoder, "ab", " cd", 100);
  EXPECT_EQ(r.ids, bytes_of("ab cd"));
  EXPECT_EQ(r.scored, 3);
}

TEST(PairRequest, WhiteSpaceAtTheContextsEndIsScoredWithTheContinuation) {
  const Encoded e;
  const Request r = pair_request(e.encoder, "ab \n", "c", 100);
  EXPECT_EQ(r.ids, bytes_of("ab \nc"));
  EXPECT_EQ(r.scored, 3) << "space, line feed, c";
}

TEST(PairRequest, ATextWithoutContextStandsOnThePrefixToken) {
  const Encoded e;
  Request r = pair_request(e.encoder, "", "ab", 100);
  EXPECT_THAT(r.ids, ElementsAre(kEnd, 'a', 'b'));
  EXPECT_EQ(r.scored, 2);
  r = pair_request(e.encoder, "", "<|endoftext|>ab", 100);
  EXPECT_THAT(r.ids, ElementsAre(kEnd, 'a', 'b')) << "the prefix is not doubled";
  EXPECT_EQ(r.scored, 2);
}

TEST(PairRequest, WhatIsTooLongLosesItsBeginning) {
  const Encoded e;
  const Request r = pair_request(e.encoder, "0123456789", "ab", 5);
  EXPECT_EQ(r.ids, bytes_of("6789ab")) << "five inputs, and the last target";
  EXPECT_EQ(r.scored, 2);
  EXPECT_THROW(pair_request(e.encoder, "0", "abcdef", 5), Error) << "six tokens to score, five fit";
  EXPECT_EQ(pair_request(e.encoder, "0", "abcde", 5).scored, 5);
}

TEST(PairRequest, NothingToScoreIsRefused) {
  const Encoded e;
  EXPECT_THROW(pair_request(e.encoder, "ab", "", 100), Error);
  EXPECT_THROW(pair_request(e.encoder, "  ", "ab", 100), Error) << "nothing stands before the continuation";
}

TEST(TaskEncoder, AddsWhatTheTokenizersTemplatePutsInFrontUnlessItIsThere) {
  const TestDir dir;
  Json json = parse_json(Tokenizer::bytes().json(), "bytes");
  const Json special = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", {special, text}}, {"pair", Json::array()}};
  write_json(dir.path() / "tokenizer.json", json);
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  const TaskEncoder encoder(tokenizer);
  EXPECT_THAT(encoder.encode("ab"), ElementsAre(kEnd, 'a', 'b'));
  EXPECT_THAT(encoder.encode("<|endoftext|>ab"), ElementsAre(kEnd, 'a', 'b'));
  EXPECT_THAT(encoder.encode_plain("ab"), ElementsAre('a', 'b'));
  EXPECT_THAT(pair_request(encoder, "a", "b", 9).ids, ElementsAre(kEnd, 'a', 'b'));
  EXPECT_THAT(pair_request(encoder, "", "b", 9).ids, ElementsAre(kEnd, 'b')) << "the prefix alone";

  json["post_processor"]["single"] = {text, special};
  write_json(dir.path() / "tokenizer.json", json);
  const Tokenizer behind = Tokenizer::load(dir.path());
  EXPECT_THROW(TaskEncoder{behind}, Error);
}

TEST(TextRequests, EveryTokenIsScoredOnceAndTheLastPieceSeesAsMuchAsFits) {
  const Encoded e;
  for (const std::size_t size : {1u, 3u, 4u, 5u, 8u, 9u, 11u}) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>('a' + i);
    std::vector<TokenId> whole = bytes_of(text), scored;
    whole.insert(whole.begin(), kEnd);
    std::size_t end = 1;
    for (const Request& r : text_requests(e.encoder, text, 4)) {
      EXPECT_LE(r.ids.size(), 5u);
      scored.insert(scored.end(), r.ids.end() - r.scored, r.ids.end());
      end += static_cast<std::size_t>(r.scored);
      EXPECT_EQ(r.ids.size(), std::min<std::size_t>(end, 5)) << "the last one is as long as the others";
      EXPECT_TRUE(std::equal(
          r.ids.begin(), r.ids.end(),
          whole.begin() + static_cast<std::ptrdiff_t>(end) - static_cast<std::ptrdiff_t>(r.ids.size())));
    }
    EXPECT_EQ(scored, bytes_of(text)) << size;
  }
}

TEST(TextCounts, AreThoseOfPython) {
  EXPECT_EQ(trailing_space("ab \n"), 2u);
  EXPECT_EQ(trailing_space("ab\xC2\xA0\xE3\x80\x80"), 5u) << "no-break and ideographic space";
  EXPECT_EQ(trailing_space("\xC3\xA9"), 0u);
  EXPECT_EQ(trailing_space(" "), 1u);
  EXPECT_EQ(characters("na\xC3\xAFve"), 5);
  EXPECT_EQ(words("one  two\nthree"), 3);
  EXPECT_EQ(words(" one "), 3) << "re.split gives empty words at the ends";
  EXPECT_EQ(words(""), 1);
}

/// A model that finds token t after token s with loss (t + s) / 100 and thinks even tokens the likeliest.
TokenScores toy(View<const std::int32_t> ids, View<const std::int32_t> targets, std::int64_t) {
  TokenScores out;
  for (std::int64_t i = 0; i < ids.size(0); ++i) {
    out.loss.push_back(targets(i) < 0 ? 0.0f : static_cast<float>(ids(i) + targets(i)) / 100);
    out.greedy.push_back(targets(i) >= 0 && targets(i) % 2 == 0 ? 1.0f : 0.0f);
  }
  return out;
}

TEST(Scoring, DoesNotDependOnHowRequestsAreBatched) {
  const Encoded e;
  std::vector<Request> requests;
  for (const char* text : {"a", "bcd", "bdf", "a longer continuation", "mid", "another one that is long"})
    requests.push_back(pair_request(e.encoder, "context", text, 64));
  const std::vector<Score> alone = score(requests, toy, {.max_length = 64, .alone = true});
  for (const std::int64_t tokens : {1, 64, 100, 4096}) {
    const std::vector<Score> batched = score(requests, toy, {.max_length = 64, .tokens = tokens});
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(batched[i].log_likelihood, alone[i].log_likelihood) << tokens;
      EXPECT_EQ(batched[i].greedy, alone[i].greedy);
    }
  }
  EXPECT_FLOAT_EQ(static_cast<float>(alone[0].log_likelihood), -('t' + 'a') / 100.0f);
  EXPECT_FALSE(alone[0].greedy) << "a is 97";
  EXPECT_FALSE(alone[1].greedy) << "one of three is not";
  EXPECT_TRUE(alone[2].greedy) << "b, d, f are 98, 100, 102";
}

TEST(Scoring, ALossThatIsNotFiniteIsSaid) {
  const Encoded e;
  const auto broken = [](View<const std::int32_t> ids, View<const std::int32_t>, std::int64_t) {
    const auto n = static_cast<std::size_t>(ids.size(0));
    return TokenScores{std::vector<float>(n, NAN), std::vector<float>(n, 0)};
  };
  EXPECT_THROW(score({pair_request(e.encoder, "a", "b", 9)}, broken, {.max_length = 9}), Error);
}

TEST(Evaluate, NormsDivideByCharactersAndBytesAndTiesGoToTheFirst) {
  const Encoded e;
  Task task{.name = "t", .delimiter = "", .examples_all = 1};
  // LL: "b" -(120+98)/100 = -2.18; "aa" -(120+97+97+97)/100 = -4.11, -2.055 a character.
  task.examples = {{"x", {"b", "aa"}, 0}, {"x", {"b", "b"}, 0}, {"x", {"b", "b"}, 1}};
  const auto results = evaluate({task}, e.encoder, toy, {.max_length = 64});
  EXPECT_THAT(results[0].metrics[0].sums, ElementsAre(1, 1, 0)) << "acc";
  EXPECT_THAT(results[0].metrics[1].sums, ElementsAre(0, 1, 0)) << "acc_norm";
}

TEST(Estimate, OfAnAccuracyIsItsMeanAndSampleErrorAndOfARatioItsOwn) {
  const Estimate acc = estimate({.name = "acc", .sums = {1, 0, 1, 1}, .weights = {}});
  EXPECT_DOUBLE_EQ(acc.value, 0.75);
  EXPECT_DOUBLE_EQ(acc.standard_error, std::sqrt(0.75 / 3) / 2);
  const Estimate ratio = estimate({.name = "bits", .sums = {2, 6}, .weights = {1, 3}});
  EXPECT_DOUBLE_EQ(ratio.value, 2);
  EXPECT_DOUBLE_EQ(ratio.standard_error, 0) << "both examples have the same ratio";
  EXPECT_DOUBLE_EQ(estimate({.name = "p", .exponential = true, .sums = {1, 3}, .weights = {}}).value,
                   std::exp(2));
}

/// 200 answers, of which the candidate loses `lost` that the baseline had.
std::pair<Metric, Metric> accuracies(int lost) {
  Metric base{.name = "acc", .sums = {}, .weights = {}}, cand = base;
  for (int i = 0; i < 200; ++i) {
    base.sums.push_back(i % 2);
    cand.sums.push_back(i % 2 == 1 && i < 2 * lost ? 0 : i % 2);
  }
  return {base, cand};
}

TEST(PairedBootstrap, EqualArmsHaveNoDifferenceAtAll) {
  const auto [base, cand] = accuracies(0);
  const PairedDifference d = paired_bootstrap(base, cand, 1, 200);
  EXPECT_EQ(d.difference, 0);
  EXPECT_THAT(d.ci95, ElementsAre(0, 0));
}

TEST(PairedBootstrap, AgreesWithTheNormalApproximationOfPairedDifferences) {
  const auto [base, cand] = accuracies(20);
  const PairedDifference d = paired_bootstrap(base, cand, 1, 4000);
  EXPECT_NEAR(d.difference, -0.1, 1e-12);
  // Paired differences are -1 with probability 0.1: sd of their mean sqrt(0.09 / 200).
  const double reach = 1.96 * std::sqrt(0.09 / 200);
  EXPECT_NEAR(d.ci95[0], -0.1 - reach, 0.006);
  EXPECT_NEAR(d.ci95[1], -0.1 + reach, 0.006);
  EXPECT_LT(d.ci95[1], 0);
}

TEST(PairedBootstrap, SwapsSignWithTheArmsAndIsAFunctionOfItsKey) {
  const auto [base, cand] = accuracies(7);
  const PairedDifference d = paired_bootstrap(base, cand, 9, 500),
                         back = paired_bootstrap(cand, base, 9, 500);
  EXPECT_DOUBLE_EQ(d.difference, -back.difference);
  EXPECT_NEAR(d.ci95[0], -back.ci95[1], 1e-12);
  EXPECT_EQ(d.ci95, paired_bootstrap(base, cand, 9, 500).ci95);
  EXPECT_NE(d.ci95, paired_bootstrap(base, cand, 10, 500).ci95);
}

TEST(PairedBootstrap, OtherExamplesAreRefused) {
  auto [base, cand] = accuracies(7);
  cand.sums.pop_back();
  EXPECT_THROW(paired_bootstrap(base, cand, 1, 10), Error);
  EXPECT_THROW(mean_of({base, cand}), Error);
}

TEST(MeanOf, AveragesAnExampleOverEvaluations) {
  Metric a{.name = "acc", .sums = {1, 0}, .weights = {}}, b = a;
  b.sums = {1, 1};
  EXPECT_THAT(mean_of({a, b}).sums, ElementsAre(1, 0.5));
}

struct BadFile {
  const char* name;
  const char* list;   ///< tasks.jsonl
  const char* lines;  ///< t.jsonl
  const char* says;
};

class MalformedTasks : public testing::TestWithParam<BadFile> {};

TEST_P(MalformedTasks, AreAUsageErrorThatNamesFileLineAndKey) {
  const TestDir dir;
  write_file(dir.path() / "tasks.jsonl", GetParam().list);
  write_file(dir.path() / "t.jsonl", GetParam().lines);
  try {
    read_tasks(dir.path(), 0);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(GetParam().says));
  }
}

constexpr const char* kChoice = "{\"task\": \"t\", \"kind\": \"multiple_choice\"}\n";
INSTANTIATE_TEST_SUITE_P(
    Cases, MalformedTasks,
    testing::Values(
        BadFile{"NotJson", kChoice, "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n{oops\n",
                "t.jsonl:2"},
        BadFile{"NotAnObject", kChoice, "[1]\n", "t.jsonl:1: a line is one JSON object"},
        BadFile{"MissingKey", kChoice, "{\"query\": \"a\", \"choices\": [\"b\", \"c\"]}\n",
                "\"gold\" is missing"},
        BadFile{"WrongType", kChoice, "{\"query\": 3, \"choices\": [\"b\", \"c\"], \"gold\": 0}\n",
                "\"query\""},
        BadFile{"GoldTooLarge", kChoice, "\n{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 2}\n",
                "t.jsonl:2: \"gold\" is 2, but the 2 choices are numbered from 0 to 1"},
        BadFile{"OneChoice", kChoice, "{\"query\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n", "needs two"},
        BadFile{"EmptyChoice", kChoice, "{\"query\": \"a\", \"choices\": [\"b\", \"\"], \"gold\": 0}\n",
                "empty text"},
        BadFile{"NoExamples", kChoice, "\n", "has no example"},
        BadFile{"UnknownKind", "{\"task\": \"t\", \"kind\": \"last_wrod\"}\n", "",
                "did you mean \"last_word\""},
        BadFile{"UnknownKey", "{\"task\": \"t\", \"kind\": \"text\", \"shot\": 2}\n", "", "\"shots\""},
        BadFile{"ShotsWithoutAFile", "{\"task\": \"t\", \"kind\": \"last_word\", \"shots\": 2}\n", "",
                "\"shots_file\" is missing"},
        BadFile{"TooFewShots",
                "{\"task\": \"t\", \"kind\": \"last_word\", \"shots\": 2, \"shots_file\": \"t.jsonl\"}\n",
                "{\"context\": \"a\", \"word\": \"b\"}\n", "wants 2 solved examples, the file has 1"},
        BadFile{"MissingFile", "{\"task\": \"u\", \"kind\": \"text\"}\n", "", "u.jsonl"},
        BadFile{"Twice", "{\"task\": \"t\", \"kind\": \"text\"}\n{\"task\": \"t\", \"kind\": \"text\"}\n",
                "{\"text\": \"a\"}\n", "two tasks called t"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ReadTasks, ShotsStandInFrontAndTheLimitKeepsTheFirst) {
  const TestDir dir;
  write_file(dir.path() / "tasks.jsonl",
             "{\"task\": \"t\", \"kind\": \"multiple_choice\", \"shots\": 1, \"shots_file\": \"s.jsonl\"}\n");
  write_file(dir.path() / "s.jsonl", "{\"query\": \"1 + 1 =\", \"choices\": [\"3\", \"2\"], \"gold\": 1}\n");
  std::string rows;
  for (int i = 0; i < 5; ++i)
    rows += fmt::format("{{\"query\": \"q{}\", \"choices\": [\"a\", \"b\"], \"gold\": 0}}\n", i);
  write_file(dir.path() / "t.jsonl", rows);
  const std::vector<Task> all = read_tasks(dir.path(), 0), some = read_tasks(dir.path(), 2);
  EXPECT_EQ(all[0].shots_text, "1 + 1 = 2\n\n");
  EXPECT_EQ(all[0].examples.size(), 5u);
  EXPECT_EQ(some[0].examples.size(), 2u);
  EXPECT_EQ(some[0].examples_all, 5);
  EXPECT_NE(tasks_hash(all), tasks_hash(some)) << "the limit decides which questions a score is about";
  EXPECT_THROW(read_tasks(dir.path() / "nowhere", 0), Error);
}

TEST(ShippedTasks, AreReadAndFitAModelOfTheQuickstartsContext) {
  const Encoded e;
  for (const char* folder : {"data/tasks", "data/recall"}) {
    const std::vector<Task> tasks = read_tasks(fs::path(NIBBLE_SOURCE_DIR) / folder, 20);
    EXPECT_GE(tasks.size(), 3u);
    EXPECT_NO_THROW(require_scorable(tasks, e.encoder, 256)) << "bytes are the longest encoding there is";
  }
}

TEST(StoredResults, ComeBackAsTheyWere) {
  const TestDir dir;
  TaskResult r{
      .task = "t", .metrics = {{.name = "acc", .sums = {1, 0, 1.0 / 3}, .weights = {}}}, .examples = {}};
  r.metrics.push_back(
      {.name = "bits", .higher_is_better = false, .exponential = true, .sums = {1}, .weights = {2}});
  store_results(dir.path(), 30, {r});
  const std::vector<StoredTask> back = read_stored(dir.path(), 30);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].metrics, r.metrics);
  EXPECT_THROW(read_stored(dir.path(), 31), Error);
}

TEST(EvaluationRecipe, QuantisesWhatItsNameSays) {
  EXPECT_FALSE(quantizes(evaluation_recipe("bf16")));
  const Recipe both = evaluation_recipe("w4a4"), weights = evaluation_recipe("w4a16");
  EXPECT_EQ(both.fprop.a.format, Format::Nvfp4);
  EXPECT_EQ(both.fprop.b.format, Format::Nvfp4);
  EXPECT_EQ(weights.fprop.a.format, Format::Bf16);
  EXPECT_EQ(weights.fprop.b, both.fprop.b);
  EXPECT_EQ(both.dgrad.a.format, Format::Bf16);
  EXPECT_THROW(evaluation_recipe("w4a8"), Error);
}

}  // namespace
}  // namespace nibble
