// SPDX-License-Identifier: Apache-2.0
// What lm-eval-harness 0.4.13 says about a tiny model and tasks with every oddity of the encoding
// (tests/golden/lm_eval, made by tools/golden/make_lm_eval.py): the same tokens, sums, greedy flags and
// metrics.
#include <gtest/gtest.h>

#include <cmath>

#include "eval/evaluate.h"
#include "eval/model.h"
#include "io/json.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden/lm_eval";
const fs::path kTokenizer = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden/tokenizers/tok_gpt2";

Json golden() { return read_json(kFolder / "golden.json"); }

TEST(LmEvalGolden, EveryContinuationHasTheHarnessTokens) {
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  const TaskEncoder encoder(tokenizer);
  const Json expected = golden();
  int compared = 0;
  for (const Task& task : read_tasks(kFolder / "tasks", 0)) {
    for (const Json& example : expected.at(task.name).at("examples")) {
      if (!example.contains("tokens")) continue;
      for (std::size_t i = 0; i < example.at("arguments").size(); ++i, ++compared) {
        const auto text = example.at("arguments").at(i).get<std::vector<std::string>>();
        const Request r = pair_request(encoder, text.at(0), text.at(1), 64);
        EXPECT_EQ(r.ids, example.at("tokens").at(i).at(0).get<std::vector<TokenId>>()) << text.at(1);
        EXPECT_EQ(r.scored, example.at("tokens").at(i).at(1).get<std::int64_t>()) << text.at(1);
      }
    }
  }
  EXPECT_GT(compared, 40);
}

class LmEvalGolden : public testing::TestWithParam<BackendKind> {};

TEST_P(LmEvalGolden, ScoresAndMetricsAreTheHarness) {
  HostDevice host;
  Stream stream(GetParam(), host, 2);
  EvalModel model(kFolder / "model", kTokenizer, stream, evaluation_recipe("fp32"));
  const std::vector<Task> tasks = read_tasks(kFolder / "tasks", 0);
  const TaskEncoder encoder(model.tokenizer());
  const std::vector<TaskResult> results = evaluate(
      tasks, encoder,
      [&](View<const std::int32_t> ids, View<const std::int32_t> targets, std::int64_t length) {
        return model.score(ids, targets, length);
      },
      model.batching());
  const Json expected = golden();
  int right = 0;
  for (const TaskResult& r : results) {
    const Json& task = expected.at(r.task);
    ASSERT_EQ(r.examples.size(), task.at("examples").size());
    for (std::size_t i = 0; i < r.examples.size(); ++i) {
      const Json& resps = task.at("examples").at(i).at("resps");
      ASSERT_EQ(r.examples[i].scores.size(), resps.size());
      for (std::size_t k = 0; k < resps.size(); ++k) {
        const Score& s = r.examples[i].scores[k];
        // FP32 sums in another order, over up to 200 tokens of some 8 nats each.
        EXPECT_NEAR(s.log_likelihood, resps.at(k).at(0).get<double>(), 1e-3) << r.task << " " << i;
        if (resps.at(k).at(1).is_null()) continue;
        EXPECT_EQ(s.greedy, resps.at(k).at(1).get<bool>()) << r.task << " " << i;
        right += s.greedy;
      }
    }
    int metrics = 0;
    for (const Metric& m : r.metrics) {
      if (!task.at("metrics").contains(m.name)) continue;
      const double value = task.at("metrics").at(m.name).get<double>();
      EXPECT_NEAR(estimate(m).value, value, 1e-4 * std::max(1.0, value)) << r.task << " " << m.name;
      ++metrics;
    }
    EXPECT_EQ(metrics, static_cast<int>(task.at("metrics").size())) << r.task;
  }
  EXPECT_GE(right, 2) << "a greedy match must occur for the flag to be tested";
}

INSTANTIATE_TEST_SUITE_P(Backends, LmEvalGolden, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace nibble
