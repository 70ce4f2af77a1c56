// SPDX-License-Identifier: Apache-2.0
#include "validate/branch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "io/safetensors.h"
#include "validate/branch_sweep.h"
#include "validate/tiny_run.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

const auto kSilent = [](const Stretch&) { return std::shared_ptr<ConsoleSink>(); };

/// One run of forty steps for all tests of this file.
class BranchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new TinyPlace;
    place_->train(place_->config());
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }
  BranchTest()
      : device_(open_device(BackendKind::Cpu)),
        stream_(BackendKind::Cpu, *device_, 1),
        point_(find_run_point(place_->run() / "checkpoints" / "step_00000020")),
        setup_(point_.config) {}

  Branch branched(const BranchRequest& request) {
    const BranchPlan plan = plan_branch(setup_, point_, request);
    std::filesystem::create_directories(plan.directory);
    return run_branch(setup_, plan, stream_, false, signals_, kSilent).result;
  }
  std::string refused(const BranchRequest& request) {
    try {
      plan_branch(setup_, point_, request);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2) << e.what();
      return e.what();
    }
    return "accepted";
  }

  static TinyPlace* place_;
  std::unique_ptr<Device> device_;
  Stream stream_;
  RunPoint point_;
  RunSetup setup_;
  SignalGuard signals_;
};
TinyPlace* BranchTest::place_ = nullptr;

TEST_F(BranchTest, BeginsWithTheCheckpointsWeightsAndOptimizerStateByteForByte) {
  const BranchPlan plan = plan_branch(setup_, point_, {.steps = 8});
  const Safetensors states = Safetensors::open_file(point_.checkpoint / "optimizer.safetensors");
  const Learner untouched(stream_, plan.candidate.learner);
  for (const Stretch* arm : {&plan.candidate, &plan.branch}) {
    const auto learner = learner_at(stream_, arm->learner, point_);
    EXPECT_EQ(learner->steps_done(), 20);
    const ParamStore& p = learner->params();
    for (const ParamStore::Entry& e : p.entries()) {
      EXPECT_EQ(p.read(p.adam_m(e)), states.at("m." + e.info.name).copy_as<float>()) << e.info.name;
      EXPECT_EQ(p.read(p.adam_v(e)), states.at("v." + e.info.name).copy_as<float>()) << e.info.name;
    }
    EXPECT_NE(weights_hash(p), weights_hash(untouched.params()));
    // The weights' own file has Hugging Face's names: saved again it has the same bytes.
    const CheckpointState state{20, point_.state.tokens, point_.state.identity};
    const auto again = save_checkpoint(place_->path() / arm->name, *learner, state, {}, {}, 0);
    EXPECT_EQ(read_file(again / "model" / "model.safetensors"),
              read_file(point_.checkpoint / "model" / "model.safetensors"));
    EXPECT_EQ(read_file(again / "optimizer.safetensors"),
              read_file(point_.checkpoint / "optimizer.safetensors"));
  }
}

TEST_F(BranchTest, TheUnchangedArmRepeatsTheRunAndTheBranchLeavesIt) {
  const Branch b = branched({.steps = 12, .aa = true});
  EXPECT_EQ(b.repeated, 12);
  EXPECT_FALSE(b.first_difference);
  ASSERT_GE(b.rows.size(), 7u);
  EXPECT_EQ(b.rows.front().step, 20);
  EXPECT_EQ(b.rows.front().gap, 0);
  EXPECT_NE(b.rows.back().branch, b.rows.back().candidate);
  EXPECT_EQ(b.rows.back().step, 32);
  // Same place of the schedule, same batches.
  ASSERT_EQ(b.branch_log.train.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(b.branch_log.train[i].lr, b.candidate_log.train[i].lr);
    EXPECT_EQ(b.branch_log.train[i].batch_hash, b.candidate_log.train[i].batch_hash);
  }
  EXPECT_GT(b.noise.measured, 0);
  EXPECT_EQ(b.noise.degrees, 3);
  EXPECT_EQ(b.noise.floor, 0);
  double sum = 0;
  int count = 0;
  for (const BranchRow& r : b.rows)
    if (r.step > 26) sum += r.gap, ++count;
  EXPECT_NEAR(b.gap, sum / count, 1e-12);
  EXPECT_NEAR(b.ci95[1] - b.gap, 3.182 * b.noise.measured, 1e-3 * b.noise.measured);
  EXPECT_EQ(b.costs.at(0).tokens, 12 * 128);
  EXPECT_TRUE(std::filesystem::exists(place_->run() / "branches/step_00000020_bf16/branch.json"));
}

TEST_F(BranchTest, ABranchOfTheForwardAloneIsAnotherOne) {
  const Branch all = branched({.steps = 6});
  const Branch forward = branched({.other = {.recipe = "bf16", .gemms = {"fprop"}}, .steps = 6});
  EXPECT_EQ(forward.label, "nvfp4, fprop in bf16");
  // Both have the same first loss, the BF16 forward's, and other gradients.
  EXPECT_EQ(all.branch_log.train.at(0).loss, forward.branch_log.train.at(0).loss);
  EXPECT_NE(all.branch_log.train.at(0).grad_norm, forward.branch_log.train.at(0).grad_norm);
  EXPECT_NE(all.branch_log.train.at(0).loss, all.candidate_log.train.at(0).loss);
}

/// A branch of a branch: its run switched recipe on the way.
TEST_F(BranchTest, TheRunIsNamedAfterTheRecipeOfTheCheckpointsStep) {
  RunConfig c = setup_.config();
  c.precision.recipe = "bf16";
  EXPECT_EQ(label_at(c, 20), "bf16");
  c.precision.switches = {{.at = {"30"}, .recipe = "fp8-current", .gemms = {"fprop"}},
                          {.at = {"20"}, .recipe = "nvfp4"}};
  EXPECT_EQ(label_at(c, 19), "bf16");
  EXPECT_EQ(label_at(c, 20), "nvfp4");
  EXPECT_EQ(label_at(c, 30), "nvfp4, fprop in fp8-current");
}

TEST_F(BranchTest, SaysWhatCannotBeBranched) {
  EXPECT_THAT(refused({.steps = 5}), HasSubstr("too short"));
  EXPECT_THAT(refused({.tokens = "1%"}), HasSubstr("too short"));
  EXPECT_THAT(refused({.tokens = "lots"}), HasSubstr("--tokens lots"));
  EXPECT_THAT(refused({.tokens = "-3"}), HasSubstr("--tokens -3"));
  EXPECT_THAT(refused({.other = {.recipe = "nvfp5"}, .steps = 8}), HasSubstr("nvfp4"));
  EXPECT_THAT(refused({.other = {.recipe = "fp32"}, .steps = 8}), HasSubstr("base"));
  point_ = find_run_point(place_->run());  // the newest: at the end
  EXPECT_THAT(refused({.steps = 8}), HasSubstr("earlier checkpoint"));
}

TEST_F(BranchTest, RefusesACheckpointOfOtherData) {
  const RunSetup other(place_->config({"data.validation_fraction=0.2"}));
  EXPECT_THROW(plan_branch(other, point_, {.steps = 8}), Error);
}

TEST(BranchTokens, AreASharesOrACount) {
  EXPECT_EQ(tokens_from("1%", 1000), 10);
  EXPECT_EQ(tokens_from("0.05%", 1000), 1);
  EXPECT_EQ(tokens_from("60B", 1), 60'000'000'000);
  EXPECT_EQ(tokens_from("1.5M", 1), 1'500'000);
  EXPECT_EQ(tokens_from("500000", 1), 500'000);
  for (const char* bad : {"", "%", "1 %", "1x", "nan", "inf", "0", "1e30"})
    EXPECT_THROW(tokens_from(bad, 1000), Error) << bad;
}

TEST_F(BranchTest, ASweepFindsItsPointsTrainsTheWayAndCountsFromTheEarliestSwitch) {
  SweepRequest request{.at = sweep_marks("at=50%,60%"), .recover = 0.5};
  const RunPoint start = run_point_before(place_->run(), 0);
  const SweepPlan plan = plan_sweep(setup_, start, request, {});
  ASSERT_EQ(plan.points, (std::vector<std::int64_t>{20, 24}));
  ASSERT_EQ(plan.arms.size(), 4u);
  std::filesystem::create_directories(plan.directory);
  const Sweep s = run_sweep(setup_, plan, stream_, false, signals_, kSilent).result;
  // Step 20 has a checkpoint, step 24 had to be reached.
  EXPECT_FALSE(std::filesystem::exists(plan.directory / "way_000020"));
  EXPECT_TRUE(std::filesystem::exists(plan.directory / "way_000024/checkpoints/step_00000024"));
  EXPECT_FALSE(s.has_baseline);
  ASSERT_EQ(s.rows.size(), 4u);
  EXPECT_EQ(s.reference, s.rows.front().loss);
  EXPECT_EQ(s.rows[1].gemms, "fprop");
  EXPECT_EQ(s.rows[2].from, 24);
  EXPECT_THAT(sweep_text(s), HasSubstr("--baseline names one"));
}

/// Logs that were never run: losses chosen, so that the recovered shares are known.
TEST(SweepJudgement, FindsTheLatestSwitchThatRecoversTheShare) {
  const auto log = [](double loss) {
    RunLog out;
    out.header.steps = 100;
    out.evaluations = {{.step = 98, .loss = loss + 0.1}, {.step = 100, .loss = loss - 0.1}};
    return out;
  };
  SweepPlan plan{.request = {.recover = 0.8}, .eval_steps = {98, 100}};
  std::vector<StretchResult> logs;
  const OtherRecipe all{"bf16", {}}, forward{"bf16", {"fprop"}};
  const std::pair<std::int64_t, double> full[] = {{60, 2.01}, {70, 2.02}, {80, 2.03}},
                                        half[] = {{60, 2.015}, {70, 2.04}, {80, 2.06}};
  for (int i = 0; i < 3; ++i) {
    plan.arms.push_back({full[i].first, all, ""});
    logs.push_back({.log = log(full[i].second), .broken = {}, .checkpoint = {}});
    plan.arms.push_back({half[i].first, forward, ""});
    logs.push_back({.log = log(half[i].second), .broken = {}, .checkpoint = {}});
  }
  const Sweep s = judge_sweep(plan, log(2.1), log(2.0), logs);
  EXPECT_NEAR(s.rows[0].recovered.value(), 0.9, 1e-9);
  EXPECT_NEAR(s.rows[4].recovered.value(), 0.7, 1e-9);
  EXPECT_EQ(s.latest_all, 70);
  EXPECT_EQ(s.latest_forward, 60);
  const Sweep none = judge_sweep(plan, log(1.9), log(2.0), logs);
  EXPECT_FALSE(none.latest_all);
  EXPECT_THAT(sweep_text(none), HasSubstr("no gap to recover"));
}

TEST(SweepMarks, AreStepsOrShares) {
  ASSERT_EQ(sweep_marks("at=60%,700").size(), 2u);
  EXPECT_EQ(sweep_marks("60%")[0].text, "60%");
  for (const char* bad : {"", "at=", "by=60%"}) EXPECT_THROW(sweep_marks(bad), Error) << bad;
}

}  // namespace
}  // namespace nibble
