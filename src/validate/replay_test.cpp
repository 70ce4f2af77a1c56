// SPDX-License-Identifier: Apache-2.0
#include "validate/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "validate/tiny_run.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Replay replayed(const TinyPlace& place, const ReplayRequest& request) {
  const RunPoint start = replay_start(place.run(), request, {});
  const auto device = open_device(BackendKind::Cpu);
  Stream stream(BackendKind::Cpu, *device, 1);
  return run_replay(start, request, stream);
}

std::string all(const Replay& r) {
  std::string text;
  for (const std::string& s : r.sentences) text += s + "\n";
  return text;
}

TEST(Replay, ASoundRunIsRepeatedBitForBitOnTwoBackends) {
  const TinyPlace place;
  place.train(place.config());
  const Replay r = replayed(place, {.at = 25});
  EXPECT_EQ(r.from, 20);
  EXPECT_EQ(r.until, 26);
  EXPECT_EQ(r.repeated, 6);
  EXPECT_EQ(r.culprit, Culprit::None) << all(r);
  ASSERT_NE(r.arm("backend"), nullptr) << "the tiny run is cheap enough for ref";
  EXPECT_EQ(r.arm("backend")->backend, "ref");
  EXPECT_NEAR(r.gradient_ratio, 1, 0.1);
  EXPECT_EQ(r.arm("other_batch"), nullptr);
  // --before begins at an earlier checkpoint, and before the first one at the start values.
  EXPECT_EQ(replay_start(place.run(), {.at = 25, .before = 5}, {}).state.step, 10);
  const Replay early = replayed(place, {.at = 3, .other = "none"});
  EXPECT_EQ(early.from, 0);
  EXPECT_EQ(early.repeated, 4);
  EXPECT_EQ(early.culprit, Culprit::None) << all(early);
  EXPECT_THROW(replayed(place, {.at = 41}), Error);
  EXPECT_THROW(replay_start(place.run(), {.at = 0}, {}), Error);
}

TEST(Replay, APlantedNanIsNamedAndBlamedOnNeitherRecipeNorData) {
  const TinyPlace place;
  place.train(place.config({"faults.inject_nan_step=14"}));
  const Replay r = replayed(place, {.at = 14, .other = "none"});
  EXPECT_EQ(r.from, 10);
  EXPECT_EQ(r.event.kind, "non-finite");
  ASSERT_TRUE(r.arm("recipe")->broken);
  const ReplayBreak& b = *r.arm("recipe")->broken;
  EXPECT_EQ(b.step, 15);
  // The NaN enters the last sublayer, which is in the block kept in BF16; the first operand that is quantised
  // lies in the block before it.
  EXPECT_THAT(b.gradient, HasSubstr("blocks.2.mlp"));
  EXPECT_THAT(b.layer, StartsWith("blocks.1."));
  EXPECT_THAT(b.operand, StartsWith("dy"));
  EXPECT_LT(b.gradients, b.parameters);
  EXPECT_TRUE(r.arm("bf16")->broken);
  EXPECT_EQ(r.repeated, 4);
  ASSERT_NE(r.arm("other_batch"), nullptr);
  EXPECT_TRUE(r.arm("other_batch")->broken);
  EXPECT_EQ(r.culprit, Culprit::Stack) << all(r);
  EXPECT_EQ(exit_code(r.culprit), 8);
}

TEST(Replay, RotationsThatDifferAreNamedForTheWeightGradient) {
  const TinyPlace place;
  place.train(place.config({"faults.wgrad_sign_mismatch=true", "training.steps=16"}));
  const Replay r = replayed(place, {.at = 12, .other = "none"});
  EXPECT_GT(r.repeated, 0);
  EXPECT_EQ(r.culprit, Culprit::Stack) << all(r);
  ASSERT_FALSE(r.arm("recipe")->faults.empty());
  EXPECT_EQ(r.arm("recipe")->faults[0].where.gemm, "wgrad");
}

TEST(Replay, LostMicroBatchesShowInTheGradientNorm) {
  const TinyPlace place;
  place.train(place.config({"faults.lost_micro_batches=true", "training.steps=16"}));
  const Replay r = replayed(place, {.at = 12, .other = "none"});
  EXPECT_EQ(r.culprit, Culprit::Stack) << all(r);
  EXPECT_THAT(all(r), HasSubstr("gradients are lost"));
}

TEST(Replay, ChangedDataAreFound) {
  const TinyPlace place;
  place.train(place.config({"training.steps=16"}));
  std::string text = read_file(place.path() / "text.txt");
  for (std::size_t i = 0; i < text.size() / 2; ++i)
    if (text[i] == 'c') text[i] = 'k';
  write_file(place.path() / "text.txt", text);
  const Replay r = replayed(place, {.at = 12, .other = "none"});
  EXPECT_EQ(r.culprit, Culprit::Data) << all(r);
  EXPECT_TRUE(r.other_batch_at);
}

TEST(Replay, ALogThatIsNotRepeatedIsBlamedOnTheStack) {
  const TinyPlace place;
  place.train(place.config({"training.steps=16"}));
  std::string log = read_file(place.run() / "metrics.jsonl");
  const auto row = log.find("\"step\":13,");
  const auto loss = log.find("\"loss\":", row) + 7;
  log[loss + 3] = log[loss + 3] == '1' ? '2' : '1';
  write_file(place.run() / "metrics.jsonl", log);
  const Replay r = replayed(place, {.at = 14, .other = "none"});
  EXPECT_EQ(r.first_difference, 13);
  EXPECT_EQ(r.repeated, 2);
  EXPECT_EQ(r.culprit, Culprit::Stack) << all(r);
}

/// Arms that were never run, so that every rule is seen alone.
class Judged : public ::testing::Test {
 protected:
  Judged() {
    for (int i = 0; i < 40; ++i)
      usual.push_back({.step = 61 + i, .loss = 3 + 0.01 * std::sin(i), .grad_norm = 1 + 0.01 * std::cos(i)});
    r.at = 101, r.from = 100, r.until = 102;
    r.version = r.logged_version = "1";
    r.arms = {arm("recipe"), arm("bf16")};
  }
  static ReplayArm arm(const char* name, double loss = 3, double norm = 1) {
    return {.name = name,
            .computes_in = name,
            .backend = "cpu",
            .steps = {{101, loss, norm, 7}, {102, 3, 1, 8}},
            .broken = {},
            .faults = {}};
  }
  Culprit judge() {
    r.logged.clear();
    for (const ReplayStep& s : r.arms[0].steps) r.logged.push_back(s);
    judge_replay(r, usual);
    return r.culprit;
  }
  Replay r;
  std::vector<TrainEvent> usual;
};

TEST_F(Judged, NothingHappened) { EXPECT_EQ(judge(), Culprit::None); }

TEST_F(Judged, ASpikeOfTheRecipeAlone) {
  r.arms[0] = arm("recipe", 5);
  EXPECT_EQ(judge(), Culprit::Recipe);
  EXPECT_EQ(r.event.kind, "loss spike");
  EXPECT_EQ(r.event.step, 101);
  r.arms[1] = arm("bf16", 3.9);  // less than half of its height
  EXPECT_EQ(judge(), Culprit::Recipe);
}

TEST_F(Judged, ASpikeThatFollowsTheBatch) {
  r.arms[0] = arm("recipe", 5);
  r.arms[1] = arm("bf16", 4.9);
  EXPECT_EQ(judge(), Culprit::Stack);  // until another batch was tried
  r.arms.push_back(arm("other_batch", 3));
  EXPECT_EQ(judge(), Culprit::Data);
  r.arms.back() = arm("other_batch", 5);
  EXPECT_EQ(judge(), Culprit::Stack);
}

TEST_F(Judged, NotFiniteUnderTheRecipeAlone) {
  r.arms[0].steps.clear();
  r.arms[0].broken = ReplayBreak{.step = 101, .layer = "blocks.1.mlp.up", .gemm = "dgrad", .operand = "dy"};
  EXPECT_EQ(judge(), Culprit::Recipe);
  EXPECT_THAT(all(r), HasSubstr("dy of blocks.1.mlp.up in dgrad"));
}

TEST_F(Judged, AnotherBackendDisagrees) {
  r.arms.push_back(arm("backend", 3.02));  // 0.7 %: the order of sums
  EXPECT_EQ(judge(), Culprit::None);
  r.arms.back() = arm("backend", 3.1);
  EXPECT_EQ(judge(), Culprit::Stack);
  r.arms[0] = r.arms[1] = arm("recipe", 5);
  r.arms[1].name = "bf16";
  r.arms.back() = arm("backend", 3);
  EXPECT_EQ(judge(), Culprit::Stack);
  EXPECT_THAT(all(r), HasSubstr("does not show it"));
}

TEST_F(Judged, GradientsThatAreLost) {
  r.arms[1] = arm("bf16", 3, 1.6);
  EXPECT_EQ(judge(), Culprit::Stack);
}

}  // namespace
}  // namespace nibble
