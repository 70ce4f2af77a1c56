// SPDX-License-Identifier: Apache-2.0
#include "validate/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/file_lock.h"
#include "train/run_log.h"
#include "validate/tiny_run.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The tiny run of every test here, ten steps long.
class Place : public TinyPlace {
 public:
  RunConfig config(const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {"schedule.kind=constant", "schedule.warmup_steps=2", "training.steps=10",
                                    "training.batch=2",       "training.micro_batch=0",  "optimizer.lr=1e-3",
                                    "checkpoint.every=0",     "checkpoint.keep=2",       "eval.every=0"};
    all.insert(all.end(), sets.begin(), sets.end());
    return TinyPlace::config(all);
  }
};

std::string usage_error(const RunSetup& setup, const AblationRequest& request) {
  try {
    plan_ablation(setup, request);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2) << e.what();
    return e.what();
  }
  return "accepted";
}

std::vector<std::string> names(const AblationPlan& plan) {
  std::vector<std::string> out;
  for (const AblationArm& a : plan.arms) out.push_back(a.name);
  return out;
}

TEST(AblationPlan, LeavesOutEveryIngredientThatTheRecipeHas) {
  const Place place;
  const RunSetup setup(place.config());
  EXPECT_THAT(names(plan_ablation(setup, {})),
              ElementsAre("baseline", "full", "no_rht", "no_sr", "no_weights_2d", "no_bf16_blocks"));
  const RunSetup plain(place.config({"precision.rht=false"}));
  const AblationPlan plan = plan_ablation(plain, {});
  EXPECT_THAT(names(plan), Not(::testing::Contains("no_rht")));
  ASSERT_EQ(plan.left_out.size(), 1u);
  EXPECT_THAT(plan.left_out[0], HasSubstr("random Hadamard transform"));
  EXPECT_THAT(usage_error(plain, {.without = {"rht"}, .arms = {}}), HasSubstr("nothing to leave out"));
}

TEST(AblationPlan, ArmsOfOneSeedShareSeedAndRoundingStreamsButTheAAArm) {
  const Place place;
  const AblationPlan plan =
      plan_ablation(RunSetup(place.config()), {.without = {"sr"}, .arms = {}, .seeds = 2});
  std::vector<std::string> folders;
  for (const ArmSpec& a : plan.protocol.arms) {
    folders.push_back(a.directory);
    EXPECT_EQ(a.seed, static_cast<std::uint64_t>(a.pair)) << a.directory;
    EXPECT_EQ(a.sr_seed == static_cast<std::uint64_t>(a.pair), a.name != kAaArm) << a.directory;
  }
  EXPECT_THAT(folders, ElementsAre("baseline", "full", "full_aa", "no_sr", "seed_02/baseline", "seed_02/full",
                                   "seed_02/no_sr"));
}

TEST(AblationPlan, ReadsArmsAsEditsAndRefusesThoseThatBreakThePairing) {
  const Place place;
  const RunSetup setup(place.config());
  const AblationPlan plan = plan_ablation(
      setup, {.without = {"none"},
              .arms = {"mx=precision.recipe=mxfp4", "plain=precision.sr=false;precision.rht=false"}});
  EXPECT_THAT(names(plan), ElementsAre("baseline", "full", "mx", "plain"));
  EXPECT_EQ(plan.arms[2].recipe, "mxfp4");
  EXPECT_EQ(plan.arms[3].config.precision.sr, false);
  EXPECT_EQ(plan.arms[3].config.precision.rht, false);
  const auto refused = [&](const std::string& arm) {
    return usage_error(setup, {.without = {}, .arms = {arm}});
  };
  EXPECT_THAT(refused("x=training.batch=4"), HasSubstr("training.batch=4"));
  EXPECT_THAT(refused("x=precision.sr_seed=9"), HasSubstr("share"));
  EXPECT_THAT(refused("full=precision.sr=false"), HasSubstr("taken"));
  EXPECT_THAT(refused("../x=precision.sr=false"), HasSubstr("letters"));
  EXPECT_THAT(refused("x"), HasSubstr("key=value"));
  EXPECT_THAT(refused("x=precision.rhtt=false"), HasSubstr("rht"));
  EXPECT_THAT(usage_error(setup, {.without = {"rth"}, .arms = {}}), HasSubstr("did you mean"));
}

TEST(AblationPlan, ARecipeWithoutIngredientsIsAUsageError) {
  const Place place;
  EXPECT_THAT(usage_error(RunSetup(place.config({"precision.recipe=bf16"})), {}),
              HasSubstr("quantises nothing"));
}

TEST(AblationPlan, TakesItsArmsFromTheConfigurationUnlessToldOtherwise) {
  const Place place;
  const RunSetup setup(
      place.config({"ablation.without=[\"rht\"]", "ablation.arms=['mx=precision.recipe=mxfp4']",
                    "ablation.seeds=2", "ablation.baseline_again=true"}));
  const AblationPlan plan = plan_ablation(setup, {});
  EXPECT_THAT(names(plan), ElementsAre("baseline", "full", "no_rht", "mx", "baseline_again"));
  EXPECT_EQ(plan.protocol.pairs(), 2);
  const ArmSpec& again = plan.protocol.arms[5];
  EXPECT_EQ(again.name, kAgainArm) << "after the first seed's arms, once";
  EXPECT_EQ(again.seed, 1001u);
  EXPECT_EQ(again.recipe, "bf16");
  EXPECT_EQ(plan.protocol.arms.size(), 2 * 4 + 2u);
  EXPECT_THAT(names(plan_ablation(setup, {.without = {"sr"}, .arms = {}, .seeds = 1})),
              ElementsAre("baseline", "full", "no_sr", "mx", "baseline_again"));
}

TEST(AblationPlan, EveryArmOfTheShippedExperimentsIsOneThatTheModelCanRun) {
  const Place place;
  for (const auto& [file, arms] :
       {std::pair{"cpu-order", 9u}, std::pair{"ladder-30m", 15u}, std::pair{"ladder-50m", 15u},
        std::pair{"ladder-100m", 15u}, std::pair{"ladder-200m", 15u}}) {
    // The bundled text stands in for the one that is not part of this repository.
    const RunConfig small = place.config({"eval.sequences=2"});
    RunConfig c = load_run_config(fmt::format(NIBBLE_SOURCE_DIR "/configs/experiments/{}.toml", file));
    c.data = small.data;
    c.eval = small.eval;
    c.training.batch = c.training.micro_batch = 4;
    const AblationPlan plan = plan_ablation(RunSetup(c), {});
    EXPECT_EQ(plan.arms.size(), arms) << file;
    EXPECT_THAT(plan.left_out, IsEmpty()) << file;
  }
}

/// A plan of fake arms, for what the curves say alone.
AblationPlan fake_plan(const std::vector<std::string>& arms, int seeds) {
  AblationPlan plan;
  ProtocolInput in{.name = "fake",
                   .model = "m",
                   .baseline_recipe = "bf16",
                   .candidate_recipe = "nvfp4",
                   .parameters = 2'400'000,
                   .tokens_per_step = 2048};
  in.schedule = {.steps = 300, .warmup_steps = 30, .decay_start = 240};
  in.pairs = seeds;
  plan.protocol = make_protocol(in);
  for (const std::string& name : arms)
    plan.arms.push_back({.name = name, .edits = {}, .config = {}, .recipe = "r"});
  return plan;
}

/// Curves that stand `gaps[s]` above the baseline of seed s.
ArmCurves fake_curves(const AblationPlan& plan, const std::string& name, const std::vector<double>& gaps) {
  ArmCurves out{.name = name, .seeds = {}, .broken = {}, .faults = {}};
  for (std::size_t s = 0; s < gaps.size(); ++s) {
    out.seeds.emplace_back();
    for (const std::int64_t step : plan.protocol.eval_steps)
      out.seeds.back().push_back({step, step * 2048, (3 + 0.1 * static_cast<double>(s)) * (1 + gaps[s])});
  }
  return out;
}

TEST(Ablation, ThreeSeedsGiveAStudentTIntervalOverPairedDifferences) {
  const AblationPlan plan = fake_plan({"baseline", "full", "x"}, 3);
  const Ablation a = judge_ablation(
      plan, {fake_curves(plan, "baseline", {0, 0, 0}), fake_curves(plan, "full", {0.01, 0.01, 0.01}),
             fake_curves(plan, "x", {0.010, 0.012, 0.014})});
  EXPECT_TRUE(a.spread);
  const GapEstimate& gap = *a.row("x")->gap;
  EXPECT_NEAR(gap.mean, 0.012, 1e-12);
  // sd 0.002, t(0.975, 2) = 4.30265, three seeds.
  EXPECT_NEAR(gap.ci95[1] - gap.mean, 4.30265 * 0.002 / std::sqrt(3.0), 1e-7);
  EXPECT_NEAR(a.row("x")->against_full->mean, 0.002 / 1.01, 1e-12);
  EXPECT_FALSE(a.row("x")->against_full->separates());
  EXPECT_THAT(ablation_text(a), Not(HasSubstr("ASSUMED")));
}

TEST(Ablation, OneSeedTakesTheAssumedNoiseAndSaysSo) {
  const AblationPlan plan = fake_plan({"baseline", "full", "near", "far"}, 1);
  const Ablation a =
      judge_ablation(plan, {fake_curves(plan, "baseline", {0}), fake_curves(plan, "full", {0.01}),
                            fake_curves(plan, "full_aa", {0.0101}), fake_curves(plan, "near", {0.012}),
                            fake_curves(plan, "far", {0.03})});
  EXPECT_NEAR(a.noise.sigma, 0.003, 1e-12);
  ASSERT_TRUE(a.noise.aa_rms);
  EXPECT_NEAR(*a.noise.aa_rms, 0.0001 / 1.01, 1e-9);
  const GapEstimate& near = *a.row("near")->against_full;
  EXPECT_NEAR(near.ci95[1] - near.mean, 1.959964 * 0.003, 1e-7);
  EXPECT_FALSE(near.separates());
  EXPECT_TRUE(a.row("far")->against_full->separates());
  const std::string text = ablation_text(a);
  EXPECT_THAT(text, HasSubstr("ASSUMED"));
  EXPECT_THAT(text, HasSubstr("WARNING"));
  EXPECT_THAT(text, HasSubstr("single ingredients"));
}

TEST(Ablation, RanksByGapWithBrokenArmsLast) {
  const AblationPlan plan = fake_plan({"baseline", "full", "broke", "worst", "best"}, 1);
  ArmCurves broke = fake_curves(plan, "broke", {0});
  broke.seeds[0].resize(2);
  broke.broken = "not finite after step 31";
  const Ablation a =
      judge_ablation(plan, {fake_curves(plan, "baseline", {0}), fake_curves(plan, "full", {0.01}), broke,
                            fake_curves(plan, "worst", {0.05}), fake_curves(plan, "best", {-0.01})});
  std::vector<std::string> order;
  for (const AblationRow& r : a.rows) order.push_back(r.name);
  EXPECT_THAT(order, ElementsAre("best", "baseline", "full", "worst", "broke"));
  EXPECT_FALSE(a.row("broke")->gap);
  EXPECT_THAT(ablation_text(a), HasSubstr("not finite after step 31"));
  EXPECT_TRUE(ablation_json(a).at("rows").at(4).at("gap").is_null());
}

TEST(Ablation, ABrokenFullRecipeStillLeavesTheGapsToTheBaseline) {
  const AblationPlan plan = fake_plan({"baseline", "full", "x"}, 1);
  ArmCurves full = fake_curves(plan, "full", {0});
  full.broken = "not finite after step 3";
  const Ablation a =
      judge_ablation(plan, {fake_curves(plan, "baseline", {0}), full, fake_curves(plan, "x", {0.02})});
  EXPECT_NEAR(a.row("x")->gap->mean, 0.02, 1e-12);
  EXPECT_FALSE(a.row("x")->against_full);
}

TEST(Ablation, AnotherSeedOfTheBaselineIsARowOfItsOwnWithTheAssumedNoise) {
  const AblationPlan plan = fake_plan({"baseline", "full", "baseline_again"}, 3);
  const Ablation a = judge_ablation(
      plan, {fake_curves(plan, "baseline", {0, 0, 0}), fake_curves(plan, "full", {0.01, 0.011, 0.012}),
             fake_curves(plan, "baseline_again", {-0.002})});
  const AblationRow& again = *a.row("baseline_again");
  EXPECT_NEAR(again.gap->mean, -0.002, 1e-12);
  EXPECT_NEAR(again.gap->ci95[1] - again.gap->mean, 1.959964 * 0.003, 1e-7);
  EXPECT_FALSE(again.against_full);
  EXPECT_THAT(ablation_text(a), HasSubstr("not paired"));
}

TEST(Ablation, ArmsWithoutCurvesAreNotFinishedAndStandLast) {
  const AblationPlan plan = fake_plan({"baseline", "full", "later", "worse"}, 3);
  const Ablation a =
      judge_ablation(plan, {fake_curves(plan, "baseline", {0}), fake_curves(plan, "full", {0.01}),
                            fake_curves(plan, "worse", {0.02})});
  EXPECT_EQ(a.seeds, 1) << "of the three planned";
  EXPECT_EQ(a.rows.back().name, "later");
  EXPECT_FALSE(a.rows.back().finished);
  EXPECT_FALSE(a.rows.back().loss);
  EXPECT_THAT(ablation_text(a), HasSubstr("not finished yet"));
  EXPECT_THROW(judge_ablation(plan, {fake_curves(plan, "baseline", {0})}), Error);
}

AblationRun run(const AblationPlan& plan, const AblationWork& work,
                std::vector<std::string>* skipped = nullptr) {
  HostDevice host;
  Stream stream(BackendKind::Cpu, host, 1);
  const SignalGuard signals;
  open_run_directory(plan.directory, true);
  return run_ablation(
      plan, stream, work, signals, [](const ArmSpec&) { return nullptr; },
      [skipped](const ArmSpec& a, const char*) {
        if (skipped != nullptr) skipped->push_back(a.directory);
      });
}

TEST(RunAblation, AnEditThatChangesNothingGivesEveryBitOfTheFullRecipe) {
  const Place place;
  // Stochastic rounding is on already: equal bits need equal start values, batches and rounding streams.
  const AblationPlan plan =
      plan_ablation(RunSetup(place.config()), {.without = {"sr"}, .arms = {"same=precision.sr=true"}});
  const AblationRun done = run(plan, {});
  ASSERT_TRUE(done.finished);
  EXPECT_TRUE(done.result.row("same")->against_full->identical);
  EXPECT_FALSE(done.result.row("no_sr")->against_full->identical);
  EXPECT_GT(*done.result.noise.aa_rms, 0) << "the A/A arm has other rounding streams";
  const RunLog base = read_run_log(plan.directory / "baseline/metrics.jsonl");
  for (const char* arm : {"full", "full_aa", "no_sr", "same"}) {
    const RunLog log = read_run_log(plan.directory / arm / "metrics.jsonl");
    EXPECT_EQ(log.header.init, base.header.init) << arm;
    ASSERT_EQ(log.train.size(), base.train.size()) << arm;
    for (std::size_t i = 0; i < log.train.size(); ++i)
      EXPECT_EQ(log.train[i].batch_hash, base.train[i].batch_hash) << arm << " step " << i + 1;
  }
}

TEST(RunAblation, ResumingSkipsFinishedArmsAndGivesTheSameFigures) {
  const Place place;
  const AblationPlan plan = plan_ablation(RunSetup(place.config()), {.without = {"rht"}, .arms = {}});
  const std::string first = ablation_json(run(plan, {}).result).dump();
  std::filesystem::remove_all(plan.directory / "no_rht");
  std::vector<std::string> skipped;
  EXPECT_EQ(ablation_json(run(plan, {.resume = true}, &skipped).result).dump(), first);
  EXPECT_THAT(skipped, ElementsAre("baseline", "full", "full_aa"));
  EXPECT_EQ(read_json(plan.directory / "ablation.json").dump(), first);
  const AblationPlan other = plan_ablation(RunSetup(place.config()), {.without = {"sr"}, .arms = {}});
  EXPECT_THROW(run(other, {.resume = true}), Error) << "other arms under the frozen protocol";
}

TEST(RunAblation, SeveralCallsShareAFolderAndTheLastOneJudges) {
  const Place place;
  const AblationPlan plan = plan_ablation(RunSetup(place.config()), {.without = {"rht"}, .arms = {}});
  const std::string alone = ablation_json(run(plan, {}).result).dump();
  std::filesystem::remove_all(plan.directory);

  const AblationRun first = run(plan, {.join = true, .only = {"baseline", "no_rht"}});
  EXPECT_FALSE(first.finished);
  EXPECT_FALSE(first.judged) << "nothing to compare with yet";
  EXPECT_THAT(first.unfinished, ElementsAre("full", "full_aa"));
  std::vector<std::string> skipped;
  {
    // Another process has this arm.
    std::filesystem::create_directories(plan.directory / "full_aa");
    const FileLock other = FileLock::wait_for(plan.directory / "full_aa/.lock");
    const AblationRun second = run(plan, {.join = true}, &skipped);
    EXPECT_THAT(skipped, ElementsAre("baseline", "full_aa", "no_rht"));
    EXPECT_TRUE(second.judged);
    EXPECT_THAT(second.unfinished, ElementsAre("full_aa"));
    EXPECT_FALSE(second.result.noise.aa_rms);
  }
  const AblationRun third = run(plan, {.join = true});
  EXPECT_TRUE(third.finished);
  EXPECT_EQ(ablation_json(third.result).dump(), alone);
  EXPECT_EQ(ablation_json(run(plan, {.judge_only = true}).result).dump(), alone);
  EXPECT_THROW(run(plan, {.join = true, .only = {"no_rth"}}), Error);
}

TEST(RunAblation, AnArmThatBrokeIsNotTrainedAgain) {
  const Place place;
  const AblationPlan plan = plan_ablation(RunSetup(place.config({"protocol.aa_arm=false"})),
                                          {.without = {"none"}, .arms = {"nan=faults.inject_nan_step=4"}});
  const std::string first = ablation_json(run(plan, {}).result).dump();
  std::vector<std::string> skipped;
  EXPECT_EQ(ablation_json(run(plan, {.resume = true}, &skipped).result).dump(), first);
  EXPECT_THAT(skipped, ElementsAre("baseline", "full", "nan"));
}

TEST(RunAblation, AnArmThatIsNotFiniteIsARowAndNotAnError) {
  const Place place;
  const AblationPlan plan = plan_ablation(RunSetup(place.config({"protocol.aa_arm=false"})),
                                          {.without = {"none"}, .arms = {"nan=faults.inject_nan_step=4"}});
  const AblationRun done = run(plan, {});
  ASSERT_TRUE(done.finished);
  EXPECT_EQ(done.result.rows.back().name, "nan");
  EXPECT_THAT(done.result.rows.back().broken, HasSubstr("not finite"));
  EXPECT_THAT(done.result.row("full")->broken, IsEmpty());
  EXPECT_FALSE(done.result.noise.aa_rms);
}

}  // namespace
}  // namespace nibble
