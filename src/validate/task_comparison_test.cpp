// SPDX-License-Identifier: Apache-2.0
#include "validate/task_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "eval/results.h"
#include "io/test_dir.h"
#include "validate/decide.h"
#include "validate/fixture.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Protocol with_tasks(int pairs) {
  ProtocolInput in = fixture::quickstart();
  in.pairs = pairs;
  Protocol p = make_protocol(in);
  p.tasks = {.names = {"t"}, .hash = "00ff", .steps = {290, 300}, .resamples = 400};
  return p;
}

/// Right answers to 100 questions, the first `right` of them.
void store(const std::filesystem::path& arm, std::int64_t step, int right) {
  Metric acc{.name = "acc", .sums = {}, .weights = {}};
  for (int i = 0; i < 100; ++i) acc.sums.push_back(i < right ? 1 : 0);
  store_results(arm, step, {{.task = "t", .metrics = {acc}, .examples = {}}});
}

TEST(TaskRule, IsPartOfTheProtocolsTextAndHash) {
  const Protocol p = with_tasks(1);
  const Protocol back = protocol_from_text(canonical_text(p));
  EXPECT_EQ(back.tasks, p.tasks);
  EXPECT_EQ(protocol_hash(back), protocol_hash(p));
  Protocol other = p;
  other.tasks.hash = "00fe";
  EXPECT_NE(protocol_hash(other), protocol_hash(p)) << "other questions are another protocol";
}

TEST(TaskRule, LeavesTheTextOfAProtocolWithoutTasksAsItWas) {
  Protocol p = with_tasks(1);
  p.tasks = {};
  EXPECT_THAT(canonical_text(p), Not(HasSubstr("tasks")));
}

TEST(CompareTasks, AveragesAnExampleOverPointsAndPairs) {
  const TestDir run;
  const Protocol p = with_tasks(2);
  for (const ArmSpec& arm : p.arms) {
    if (arm.name == "candidate_aa") continue;
    const int lost = arm.name == "candidate" ? 10 * arm.pair : 0;
    for (const std::int64_t step : p.tasks.steps) store(run.path() / arm.directory, step, 60 - lost);
  }
  const std::vector<TaskComparison> out = compare_tasks(p, run.path());
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].examples, 100);
  EXPECT_NEAR(out[0].baseline, 0.60, 1e-12);
  EXPECT_NEAR(out[0].candidate, 0.45, 1e-12) << "50 and 40 of 100";
  EXPECT_NEAR(out[0].difference, -0.15, 1e-12);
  EXPECT_LT(out[0].ci95[0], -0.15);
  EXPECT_GT(out[0].ci95[1], -0.15);
  EXPECT_LT(out[0].ci95[1], 0);
}

TEST(CompareTasks, NamesTheFileThatIsMissing) {
  const TestDir run;
  const Protocol p = with_tasks(1);
  store(run.path() / "baseline", 290, 50);
  try {
    compare_tasks(p, run.path());
    FAIL() << "compared";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("step_00000300.json"));
  }
}

TEST(CompareTasks, ComeBackFromTheVerdictsText) {
  const Protocol p = with_tasks(1);
  Verdict v = decide(p, {.pairs = {fixture::pair_with(p, 0.001, 0.0005)}});
  v.tasks = {{"t", "acc", true, 100, 0.6, 0.45, -0.15, {-0.2, -0.1}}};
  EXPECT_EQ(verdict_from_json(verdict_to_json(v)).tasks, v.tasks);
}

}  // namespace
}  // namespace nibble
