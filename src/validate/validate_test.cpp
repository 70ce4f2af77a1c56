// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "validate/decide.h"
#include "validate/fixture.h"
#include "validate/sequential.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using fixture::pair_with;
using fixture::quickstart;

Verdict judged(double gap, double aa) {
  const Protocol p = make_protocol(quickstart());
  return decide(p, {.pairs = {pair_with(p, gap, aa)}});
}

TEST(FinalLimit, FollowsTheModelsSize) {
  EXPECT_DOUBLE_EQ(final_limit(2'400'000), 0.035);
  EXPECT_DOUBLE_EQ(final_limit(300'000'000), 0.035);
  EXPECT_NEAR(final_limit(948'683'298), 0.030, 1e-9) << "halfway in log N between 0.3 B and 3 B";
  EXPECT_DOUBLE_EQ(final_limit(3'000'000'000), 0.025);
  EXPECT_DOUBLE_EQ(final_limit(7'000'000'000), 0.015);
  EXPECT_DOUBLE_EQ(final_limit(12'310'001'152), 0.015);
  EXPECT_DOUBLE_EQ(stable_limit(0.015), 0.010);
}

TEST(Protocol, WindowsAreTheLastTenthBeforeTheDecayAndTheLastTwentieth) {
  const Protocol p = make_protocol(quickstart());
  ASSERT_EQ(p.windows.size(), 2u);
  EXPECT_EQ(p.windows[0].after_step, 216);
  EXPECT_EQ(p.windows[0].last_step, 240);
  EXPECT_EQ(p.windows[1].after_step, 285);
  EXPECT_EQ(p.windows[1].last_step, 300);
  for (const auto& w : p.windows) {
    const auto inside = std::count_if(p.eval_steps.begin(), p.eval_steps.end(),
                                      [&](auto s) { return s > w.after_step && s <= w.last_step; });
    EXPECT_GE(inside, 5) << w.name;
  }
}

TEST(Protocol, EvaluatesEveryTwentiethOfTheRunAndItsEnd) {
  const Protocol p = make_protocol(quickstart());
  for (int i = 1; i <= 20; ++i) EXPECT_THAT(p.eval_steps, ::testing::Contains(15 * i));
  EXPECT_TRUE(std::is_sorted(p.eval_steps.begin(), p.eval_steps.end()));
  EXPECT_LE(p.eval_steps.size(), 32u);
}

TEST(Protocol, HasOneWindowWithoutADecay) {
  auto in = quickstart();
  in.schedule.decay_start = 300;
  const Protocol p = make_protocol(in);
  ASSERT_EQ(p.windows.size(), 1u);
  EXPECT_EQ(p.windows[0].name, "final");
}

TEST(Protocol, HasOneWindowWhereTheDecayBeginsWithTheEndOfWarmUp) {
  auto in = quickstart();
  in.schedule.decay_start = in.schedule.warmup_steps;  // cosine and linear schedules
  const Protocol p = make_protocol(in);
  ASSERT_EQ(p.windows.size(), 1u);
  EXPECT_EQ(p.windows[0].name, "final");
  EXPECT_EQ(p.windows[0].last_step, 300);
}

TEST(Protocol, ARunTooShortForItsWindowsIsAUsageError) {
  auto in = quickstart();
  in.schedule = {.steps = 8, .warmup_steps = 2, .decay_start = 6};
  try {
    make_protocol(in);
    FAIL() << "eight steps were accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_THAT(e.what(), HasSubstr("8 steps"));
    EXPECT_THAT(e.what(), HasSubstr("train longer"));
  }
}

TEST(Protocol, ARunTooShortIsToldHowManyStepsWouldDo) {
  for (const std::int64_t decay_start : {6, 8}) {
    auto in = quickstart();
    in.schedule = {.steps = 8, .warmup_steps = 4, .decay_start = decay_start};
    std::string text;
    try {
      make_protocol(in);
    } catch (const Error& e) {
      text = e.what();
    }
    EXPECT_THAT(text, Not(HasSubstr("window_evals"))) << "no key of a configuration has this name";
    const std::string key = "training.steps = ";
    const auto at = text.find(key);
    ASSERT_NE(at, std::string::npos) << text;
    const std::int64_t steps = std::stoll(text.substr(at + key.size()));
    const auto with = [&](std::int64_t n) {
      auto longer = in;
      longer.schedule.steps = n;
      longer.schedule.decay_start = decay_start == 8 ? n : n - std::llround(0.25 * static_cast<double>(n));
      return longer;
    };
    EXPECT_NO_THROW(make_protocol(with(steps))) << steps;
    EXPECT_THROW(make_protocol(with(steps - 2)), Error) << steps << " is more than is needed";
  }
}

TEST(Protocol, TheAAArmsRoundingSeedFitsAConfigurationAndIsNoOtherArms) {
  for (const std::uint64_t seed : {0ull, 1ull, 2ull, (1ull << 53) - 1, 1ull << 53, (1ull << 63) - 200}) {
    auto in = quickstart();
    in.sr_seed = seed, in.pairs = 100;
    const Protocol p = make_protocol(in);
    std::uint64_t aa = 0;
    for (const auto& arm : p.arms) {
      if (arm.name == "candidate_aa") aa = arm.sr_seed;
    }
    EXPECT_LT(aa, 1ull << 53) << "a double must hold it";
    for (const auto& arm : p.arms) {
      if (arm.name == "candidate_aa") continue;
      EXPECT_NE(arm.sr_seed, aa) << arm.directory;
    }
  }
}

TEST(Protocol, TheAAArmRunsRightAfterItsCandidate) {
  auto in = quickstart();
  in.pairs = 2;
  std::vector<std::string> order;
  for (const auto& arm : make_protocol(in).arms) order.push_back(arm.directory);
  EXPECT_THAT(order, ::testing::ElementsAre("baseline", "candidate", "candidate_aa", "pair_02/baseline",
                                            "pair_02/candidate"));
}

TEST(Protocol, TheAAArmDiffersInTheRoundingSeedAlone) {
  const Protocol p = make_protocol(quickstart());
  ASSERT_EQ(p.arms.size(), 3u);
  ArmSpec aa = p.arms[2];
  EXPECT_NE(aa.sr_seed, p.arms[1].sr_seed);
  EXPECT_EQ(aa.directory, "candidate_aa");
  aa.sr_seed = p.arms[1].sr_seed, aa.name = "candidate", aa.directory = "candidate";
  EXPECT_EQ(aa, p.arms[1]);
}

TEST(Protocol, FurtherPairsHaveTheirOwnSeedsAndFolders) {
  auto in = quickstart();
  in.pairs = 3;
  const Protocol p = make_protocol(in);
  EXPECT_EQ(p.pairs(), 3);
  EXPECT_EQ(p.arms[3].directory, "pair_02/baseline");
  EXPECT_EQ(p.arms[4].directory, "pair_02/candidate");
  EXPECT_EQ(p.arms[3].seed, p.arms[4].seed);
  EXPECT_NE(p.arms[3].seed, p.arms[0].seed);
}

TEST(Protocol, EvaluatesWhereThePrecisionSwitches) {
  auto in = quickstart();
  in.schedule.switch_steps = {247};
  const Protocol p = make_protocol(in);
  EXPECT_THAT(p.eval_steps, ::testing::Contains(247));
  EXPECT_EQ(p.switch_steps, in.schedule.switch_steps);
  EXPECT_EQ(p.windows, make_protocol(quickstart()).windows);
  EXPECT_NE(protocol_hash(p), protocol_hash(make_protocol(quickstart())));
}

TEST(Protocol, ReadsBackFromItsTextWithTheSameHash) {
  Protocol p = make_protocol(quickstart());
  p.switch_steps = {200};
  p.noise.stored_rms = {{"final", 0.004}};
  p.noise.stored_arms = 2, p.noise.stored_from = "0123";
  p.contract = {{"data", "abc"}, {"init", "def"}};
  const Protocol q = protocol_from_text(canonical_text(p));
  EXPECT_EQ(canonical_text(q), canonical_text(p));
  EXPECT_EQ(protocol_hash(q), protocol_hash(p));
  EXPECT_EQ(protocol_hash(p).size(), 32u);
}

TEST(Protocol, AnyChangedFigureChangesTheHash) {
  const Protocol p = make_protocol(quickstart());
  const std::string before = protocol_hash(p);
  Protocol q = p;
  q.windows[1].limit = 0.0351;
  EXPECT_NE(protocol_hash(q), before);
  q = p;
  q.contract["data"] = "other";
  EXPECT_NE(protocol_hash(q), before);
  q = p;
  q.arms[1].sr_seed += 1;
  EXPECT_NE(protocol_hash(q), before);
}

TEST(SmallRunCaveats, AreSilentForALargeRunAndNameTheIngredientsForASmallOne) {
  EXPECT_TRUE(small_run_caveats(12'000'000'000, 1'000'000'000'000, 3).empty());
  const auto caveats = small_run_caveats(2'400'000, 600'000, 1);
  std::string all;
  for (const auto& c : caveats) all += c + "\n";
  EXPECT_THAT(all, HasSubstr("Hadamard"));
  EXPECT_THAT(all, HasSubstr("stochastic rounding"));
  EXPECT_THAT(all, HasSubstr("2D"));
  EXPECT_THAT(all, HasSubstr("forward-only"));
  EXPECT_THAT(all, HasSubstr("this seed"));
}

TEST(SmallRunCaveats, NameTheRunsTheirFiguresComeFrom) {
  std::string all;
  for (const auto& c : small_run_caveats(2'400'000, 600'000, 1)) all += c + "\n";
  EXPECT_THAT(all, HasSubstr("Quartet II"));
  EXPECT_THAT(all, HasSubstr("MLPerf"));
  EXPECT_THAT(all, HasSubstr("0.66 M parameters")) << "the setting of the project's own ordering test";
}

TEST(AbortRule, AbortsNullRunsNoMoreOftenThanStated) {
  const Protocol p = make_protocol(quickstart());
  std::vector<double> looks;
  std::vector<std::int64_t> steps;
  for (const auto s : p.eval_steps) {
    if (s < p.abort.first_step) continue;
    looks.push_back(static_cast<double>(s) / 300), steps.push_back(s);
  }
  constexpr std::int64_t kPaths = 20'000;
  constexpr double kSigma = 0.05;  // above every limit over k, so that k sigma is what decides
  const auto gaps = simulate_null(looks, kPaths, /*seed=*/12345);
  std::int64_t aborted = 0;
  for (std::int64_t path = 0; path < kPaths; ++path) {
    AbortMonitor monitor(p.abort);
    for (std::size_t i = 0; i < looks.size(); ++i)
      monitor.push(steps[i], kSigma * gaps[path * looks.size() + i], kSigma);
    aborted += monitor.fired();
  }
  const double rate = static_cast<double>(aborted) / kPaths;
  EXPECT_LE(rate, 0.01 + 3 * std::sqrt(0.01 * 0.99 / kPaths));
  EXPECT_GE(rate, 0.004) << "a multiplier this loose would miss real gaps";
}

TEST(Decide, IdenticalArmsHaveAGapOfExactlyZero) {
  const Verdict v = judged(0, 0);
  EXPECT_EQ(v.relative_gap, 0.0);
  EXPECT_EQ(v.noise_floor, 0.0);
  EXPECT_TRUE(v.identical);
  EXPECT_EQ(v.label, "identical");
  EXPECT_EQ(v.outcome, Outcome::Pass);
  EXPECT_EQ(*v.extra_tokens, 0.0);
}

TEST(Decide, IdenticalArmsClaimNothingAboutTheRecipe) {
  const Verdict v = judged(0, 0);
  EXPECT_THAT(v.reason, HasSubstr("nothing was quantised or the recipe changed nothing"));
  EXPECT_THAT(v.claim, HasSubstr("nothing about nvfp4"));
}

TEST(Decide, OneDifferentBitIsNotIdentical) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0, 0);
  pair.candidate[3].loss = std::nextafter(pair.candidate[3].loss, 10);
  EXPECT_FALSE(decide(p, {.pairs = {pair}}).identical);
}

TEST(Decide, ASmallGapUnderASmallNoisePasses) {
  const Verdict v = judged(0.006, 0.0005);
  EXPECT_EQ(v.outcome, Outcome::Pass);
  EXPECT_NEAR(v.relative_gap, 0.006, 1e-12);
  EXPECT_NEAR(*v.two_arm_gap, (0.006 + 1.006 * 1.0005 - 1) / 2, 1e-12);
  EXPECT_EQ(v.label, "measurably worse");
  EXPECT_THAT(v.claim, HasSubstr("this seed"));
  EXPECT_THAT(v.reason, HasSubstr("+0.60 %"));
}

TEST(Decide, AGapInsideTheNoiseIsCalledIndistinguishable) {
  const Verdict v = judged(0.003, 0.001);
  EXPECT_TRUE(v.inside_noise);
  EXPECT_EQ(v.label, "indistinguishable");
}

TEST(Decide, AGapAboveTheLimitFails) {
  const Verdict v = judged(0.05, 0.001);
  EXPECT_EQ(v.outcome, Outcome::Fail);
  EXPECT_THAT(v.reason, HasSubstr("above the limit"));
}

TEST(Decide, ALargeNoiseIsInconclusiveAndSaysWhatWouldDecide) {
  const Verdict v = judged(0.01, 0.01);
  EXPECT_EQ(v.outcome, Outcome::Inconclusive);
  EXPECT_THAT(v.more_data, HasSubstr("pairs would decide"));
  EXPECT_THAT(v.more_data, HasSubstr("smallest limit"));
}

TEST(Decide, AssumedNoiseIsNeverEnoughToPass) {
  const Protocol p = make_protocol(quickstart());
  const Verdict v = decide(p, {.pairs = {pair_with(p, 0.006, 0, 1, false)}});
  EXPECT_EQ(v.outcome, Outcome::Inconclusive);
  EXPECT_THAT(v.more_data, HasSubstr("A/A arm"));
}

TEST(Decide, TheStableWindowCanFailAlone) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0.001, 0.0001);
  for (std::size_t i = 0; i < pair.candidate.size(); ++i) {
    if (pair.candidate[i].step > 240) continue;
    pair.candidate[i].loss = pair.baseline[i].loss * 1.03;
    pair.candidate_aa[i].loss = pair.candidate[i].loss;
  }
  const Verdict v = decide(p, {.pairs = {pair}});
  EXPECT_EQ(v.outcome, Outcome::Fail);
  EXPECT_THAT(v.reason, HasSubstr("stable window"));
}

TEST(Decide, NeverPassesWhileAFaultIsRaised) {
  const Protocol p = make_protocol(quickstart());
  const AlarmEvent fault{12,
                         Severity::Fault,
                         "gemm_mismatch",
                         {"blocks.1.mlp.up", 1, "wgrad", ""},
                         "blocks.1.mlp.up wgrad: the product differs"};
  for (const double gap : {0.0, 0.006}) {
    const Verdict v = decide(p, {.pairs = {pair_with(p, gap, 0.001)}, .alarms = {fault}});
    EXPECT_EQ(v.outcome, Outcome::Fail) << gap;
    EXPECT_THAT(v.reason, HasSubstr("blocks.1.mlp.up wgrad"));
  }
  AlarmEvent warning = fault;
  warning.severity = Severity::Warning;
  EXPECT_EQ(decide(p, {.pairs = {pair_with(p, 0.006, 0.001)}, .alarms = {warning}}).outcome, Outcome::Pass);
}

TEST(Decide, AnAbortNeedsNoFurtherEvaluations) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0.08, 0, 1, false);
  pair.candidate.resize(8);
  const AbortRecord abort{
      pair.candidate.back().step, pair.candidate.back().tokens, 0.08, 0.035, "sustained_gap", "candidate"};
  const Verdict v = decide(p, {.pairs = {pair}, .abort = abort});
  EXPECT_EQ(v.outcome, Outcome::Aborted);
  EXPECT_EQ(v.step, abort.step);
  EXPECT_EQ(exit_code(v.outcome), 3);
  EXPECT_THROW(decide(p, {.pairs = {pair}}), Error) << "evaluations are missing without a reason";
}

/// A candidate that broke in step 100: its arm ends with an error, and its later evaluations do not exist.
Evidence broken_at_100(const Protocol& p) {
  Evidence e{.pairs = {pair_with(p, 0.02, 0, 1, false)}};
  std::erase_if(e.pairs[0].candidate, [](const EvalPoint& point) { return point.step > 100; });
  e.abort =
      AbortRecord{.step = 100, .tokens = 100 * p.tokens_per_step, .rule = "non_finite", .arm = "candidate"};
  e.alarms = {{100,
               Severity::Fault,
               "non_finite",
               {},
               "blocks.1.mlp.up dgrad operand dy holds a value that is not finite"}};
  return e;
}

TEST(Decide, ABrokenCandidateFailsAndSaysWhatBroke) {
  const Protocol p = make_protocol(quickstart());
  const Verdict v = decide(p, broken_at_100(p));
  EXPECT_EQ(v.outcome, Outcome::Fail);
  EXPECT_EQ(exit_code(v.outcome), 3);
  EXPECT_EQ(v.label, "not finite");
  EXPECT_THAT(v.reason, HasSubstr("step 100"));
  EXPECT_THAT(v.reason, HasSubstr("blocks.1.mlp.up dgrad operand dy"));
  EXPECT_THAT(v.reason, Not(HasSubstr("stood above")));
  EXPECT_THAT(v.reason, Not(HasSubstr("numerical fault"))) << "the same fault is told twice";
  EXPECT_NEAR(v.relative_gap, 0.02, 1e-12) << "the last evaluation both arms have";
  EXPECT_EQ(v.step, 100);
  ASSERT_TRUE(v.abort);
  EXPECT_EQ(v.abort->rule, "non_finite");
  EXPECT_THAT(verdict_to_json(v), HasSubstr("\"threshold\": null")) << "none was crossed";
}

TEST(Decide, TheErrorThatEndedACandidateIsToldInOneLine) {
  const Protocol p = make_protocol(quickstart());
  Evidence e = broken_at_100(p);
  e.alarms[0].text = "the loss is not a number.\nThe last good checkpoint is none.";
  const Verdict v = decide(p, e);
  EXPECT_THAT(v.reason, Not(HasSubstr("\n")));
  EXPECT_THAT(v.reason, HasSubstr("checkpoint is none."));
  EXPECT_TRUE(v.reason.ends_with("none.")) << v.reason;
}

TEST(Decide, ACandidateThatBrokeBeforeItsFirstEvaluationHasNoGap) {
  const Protocol p = make_protocol(quickstart());
  Evidence e = broken_at_100(p);
  e.pairs[0].candidate.clear();
  const Verdict v = decide(p, e);
  EXPECT_EQ(v.outcome, Outcome::Fail);
  EXPECT_THAT(v.reason, HasSubstr("no earlier evaluation"));
  const std::string text = verdict_to_json(v);
  EXPECT_THAT(text, HasSubstr("\"relative_gap\": null"));
  EXPECT_EQ(verdict_to_json(verdict_from_json(text)), text);
}

TEST(Decide, OtherFaultsOfABrokenCandidateAreTold) {
  const Protocol p = make_protocol(quickstart());
  Evidence e = broken_at_100(p);
  e.alarms.push_back({90, Severity::Fault, "gemm_mismatch", {}, "blocks.1.mlp.up wgrad: differs"});
  EXPECT_THAT(decide(p, e).reason, HasSubstr("blocks.1.mlp.up wgrad"));
}

TEST(Decide, ANonFiniteEvaluationKeepsTheLastGapAndTheAlarms) {
  const Protocol p = make_protocol(quickstart());
  Evidence e{.pairs = {pair_with(p, 0.02, 0.001)}};
  e.pairs[0].candidate[5].loss = std::nan("");
  e.alarms = {{3, Severity::Warning, "flushed", {}, "text"}};
  const Verdict v = decide(p, e);
  EXPECT_NEAR(v.relative_gap, 0.02, 1e-12);
  EXPECT_EQ(v.step, p.eval_steps[5]);
  EXPECT_EQ(v.alarms.size(), 1u);
}

TEST(Decide, ANonFiniteCandidateFails) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0.001, 0.001);
  pair.candidate[5].loss = std::nan("");
  EXPECT_EQ(decide(p, {.pairs = {pair}}).outcome, Outcome::Fail);
}

TEST(Decide, DoesNotDependOnTheOrderOfThePairs) {
  auto in = quickstart();
  in.pairs = 5;
  const Protocol p = make_protocol(in);
  std::vector<PairData> pairs;
  for (int i = 0; i < 5; ++i) pairs.push_back(pair_with(p, 0.006 + 0.0013 * ((i * 7) % 5), 0.002, i + 1));
  const Verdict forward = decide(p, {.pairs = pairs});
  std::reverse(pairs.begin(), pairs.end());
  const Verdict backward = decide(p, {.pairs = pairs});
  EXPECT_EQ(forward.relative_gap, backward.relative_gap);
  EXPECT_EQ(forward.gap_ci95, backward.gap_ci95);
  EXPECT_EQ(forward.outcome, backward.outcome);
  EXPECT_THAT(forward.claim, HasSubstr("5 seeds"));
}

TEST(Decide, DoesNotDependOnTheUnitOfTheLoss) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0.006, 0.004);
  const Verdict nats = decide(p, {.pairs = {pair}});
  for (auto* arm : {&pair.baseline, &pair.candidate, &pair.candidate_aa}) {
    for (auto& e : *arm) e.loss /= std::log(2.0);
  }
  const Verdict bits = decide(p, {.pairs = {pair}});
  EXPECT_NEAR(bits.relative_gap, nats.relative_gap, 1e-14);
  EXPECT_NEAR(bits.noise_floor, nats.noise_floor, 1e-14);
  EXPECT_EQ(bits.outcome, nats.outcome);
}

TEST(Decide, AnotherProtocolThanTheFrozenOneIsNotPreregistered) {
  const Protocol p = make_protocol(quickstart());
  EXPECT_TRUE(
      decide(p, {.pairs = {pair_with(p, 0.006, 0.001)}, .frozen_hash = protocol_hash(p)}).preregistered);
  EXPECT_FALSE(decide(p, {.pairs = {pair_with(p, 0.006, 0.001)}, .frozen_hash = "other"}).preregistered);
}

TEST(Verdict, ReadsBackFromItsJson) {
  Verdict v = judged(0.006, 0.004);
  v.alarms = {{12, Severity::Warning, "flushed", {"blocks.1.mlp.up", 1, "wgrad", "dy"}, "text"}};
  v.abort = AbortRecord{15, 30720, 0.08, 0.035, "sustained_gap", "candidate"};
  const std::string text = verdict_to_json(v);
  EXPECT_EQ(verdict_to_json(verdict_from_json(text)), text);
  for (const char* key :
       {"\"verdict\": \"pass\"", "\"relative_gap\"", "\"gap_ci95\"", "\"noise_floor\"", "\"limit\"",
        "\"step\"", "\"tokens\"", "\"baseline\"", "\"candidate\"", "\"rule\""}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
  EXPECT_THROW(verdict_from_json("{}"), Error);
}

TEST(Verdict, AlarmsNameTheirArm) {
  Verdict v = judged(0.006, 0.004);
  v.alarms = {{.step = 12, .rule = "flushed", .text = "text", .arm = "pair_02/candidate"}};
  const std::string text = verdict_to_json(v);
  EXPECT_THAT(text, HasSubstr("\"arm\": \"pair_02/candidate\""));
  EXPECT_EQ(verdict_from_json(text).alarms, v.alarms);
}

TEST(Verdict, ExitCodesAreTheDocumentedOnes) {
  EXPECT_EQ(exit_code(Outcome::Pass), 0);
  EXPECT_EQ(exit_code(Outcome::Fail), 3);
  EXPECT_EQ(exit_code(Outcome::Aborted), 3);
  EXPECT_EQ(exit_code(Outcome::Inconclusive), 4);
}

}  // namespace
}  // namespace nibble
