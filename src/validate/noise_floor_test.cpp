// SPDX-License-Identifier: Apache-2.0
#include "validate/noise_floor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "train/run_config.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Protocol protocol(std::uint64_t seed = 1) {
  ProtocolInput in{.name = "run", .model = "tiny", .baseline_recipe = "bf16", .candidate_recipe = "nvfp4"};
  in.parameters = 2'400'000, in.tokens_per_step = 2048, in.seed = seed;
  in.schedule = {.steps = 300, .warmup_steps = 30, .decay_start = 240};
  return make_protocol(in);
}

PairData pair_with_aa(const Protocol& p, double aa) {
  PairData out;
  for (const auto step : p.eval_steps) {
    const EvalPoint e{step, step * p.tokens_per_step, 3.0};
    out.baseline.push_back(e), out.candidate.push_back(e), out.candidate_aa.push_back(e);
    out.candidate_aa.back().loss *= 1 + aa;
  }
  return out;
}

NoiseFloor experiment() {
  return {.recipe = "nvfp4",
          .parameters = 2'400'000,
          .validation = "abc",
          .settings = {{"optimizer.lr", "0.0015"}, {"training.steps", "300"}},
          .file = "runs/old/noise_floor.json"};
}

std::string refusal(const NoiseFloor& floor, const NoiseFloor& now) {
  try {
    require_same_experiment(floor, now);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(NoiseFloor, ReadsBackFromItsFile) {
  const Protocol p = protocol();
  const auto floor = measured_floor(experiment(), p, {pair_with_aa(p, 0.004)}, nullptr);
  ASSERT_TRUE(floor);
  EXPECT_EQ(floor->arms, 1);
  EXPECT_NEAR(floor->aa_rms.at("stable"), 0.004, 1e-12);
  const std::string path = ::testing::TempDir() + "/noise_floor_reads_back.json";
  std::ofstream(path) << noise_floor_to_json(*floor);
  EXPECT_EQ(noise_floor_to_json(read_noise_floor(path)), noise_floor_to_json(*floor));
}

TEST(NoiseFloor, GrowsFromRunToRun) {
  Protocol first = protocol(1), second = protocol(2);
  const auto floor = measured_floor(experiment(), first, {pair_with_aa(first, 0.004)}, nullptr);
  second.noise = with_stored_floor(second.noise, *floor);
  const auto grown = measured_floor(experiment(), second, {pair_with_aa(second, 0.002)}, &*floor);
  ASSERT_TRUE(grown);
  EXPECT_EQ(grown->arms, 2);
  EXPECT_NEAR(grown->aa_rms.at("final"), std::sqrt((0.004 * 0.004 + 0.002 * 0.002) / 2), 1e-12);
  EXPECT_EQ(grown->protocols.size(), 2u);
}

TEST(NoiseFloor, IsNoneWhereTheAAArmDidNotReachTheEnd) {
  const Protocol p = protocol();
  PairData pair = pair_with_aa(p, 0.004);
  pair.candidate_aa.pop_back();
  EXPECT_FALSE(measured_floor(experiment(), p, {pair}, nullptr));
  pair.candidate_aa.clear();
  EXPECT_FALSE(measured_floor(experiment(), p, {pair}, nullptr));
}

TEST(NoiseFloor, OfAnotherExperimentIsRefusedNamingWhatDiffers) {
  const NoiseFloor now = experiment();
  EXPECT_EQ(refusal(experiment(), now), "");
  NoiseFloor other = experiment();
  other.parameters = 8'000'000'000;
  EXPECT_THAT(refusal(other, now), HasSubstr("parameters: 8000000000 there, 2400000 here"));
  other = experiment();
  other.recipe = "mxfp4";
  EXPECT_THAT(refusal(other, now), HasSubstr("recipe: mxfp4 there, nvfp4 here"));
  other = experiment();
  other.validation = "other";
  EXPECT_THAT(refusal(other, now), HasSubstr("evaluation set"));
  other = experiment();
  other.settings["optimizer.lr"] = "0.003";
  other.settings["precision.rht"] = "false";
  const std::string text = refusal(other, now);
  EXPECT_THAT(text, HasSubstr("optimizer.lr: 0.003 there, 0.0015 here"));
  EXPECT_THAT(text, HasSubstr("precision.rht: false there, unset here"));
  EXPECT_THAT(text, HasSubstr("noise_floor.json"));
  EXPECT_THAT(text, Not(HasSubstr("training.steps")));
}

TEST(NoiseFloor, OneThatIsNotUsedIsOneSentenceWithWhatDiffersAndWhatToDo) {
  NoiseFloor now = experiment();
  EXPECT_TRUE(floor_differences(experiment(), now).empty());
  now.settings["training.steps"] = "60";
  const auto one = floor_differences(experiment(), now);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].text(), "training.steps: 300 there, 60 here");
  EXPECT_EQ(
      unused_floor_sentence(one, true),
      "protocol.noise_floor is not used: the runs behind it differ in training.steps; this run's A/A arm "
      "measures the noise instead.");
  EXPECT_THAT(unused_floor_sentence(one, false), HasSubstr("set protocol.aa_arm = true"));
  now.parameters = 1, now.recipe = "mxfp4", now.validation = "other";
  EXPECT_THAT(unused_floor_sentence(floor_differences(experiment(), now), true),
              HasSubstr("differ in parameters, recipe, evaluation set and 1 more;"));
}

/// A key that is part of every run's identity makes the stored runs those of another experiment, and the
/// quickstart then judges with the noise of one arm: a key that comes later counts where it is set
/// (kWhereSet).
TEST(NoiseFloor, TheQuickstartsOwnIsOfItsConfiguration) {
  const RunConfig quickstart = load_run_config(NIBBLE_SOURCE_DIR "/configs/quickstart.toml");
  const NoiseFloor floor = read_noise_floor(NIBBLE_SOURCE_DIR "/configs/quickstart_noise_floor.json");
  EXPECT_EQ(floor.settings, noise_settings(maths_values(quickstart)));
  EXPECT_EQ(floor.recipe, candidate_recipe(quickstart).name);
}

TEST(NoiseFloor, SettingsLeaveOutSeedsAndBackend) {
  const auto s = noise_settings({{"training.seed", "1"},
                                 {"precision.sr_seed", "2"},
                                 {"training.backend", "cpu"},
                                 {"optimizer.lr", "1"}});
  EXPECT_EQ(s.size(), 1u);
  EXPECT_TRUE(s.contains("optimizer.lr"));
}

TEST(NoiseFloor, AMissingOrBrokenFileIsAUsageErrorNamingIt) {
  EXPECT_THROW(read_noise_floor("/nonexistent/noise_floor.json"), Error);
  const std::string path = ::testing::TempDir() + "/noise_floor_broken.json";
  std::ofstream(path) << "{\"schema\": 1}";
  try {
    read_noise_floor(path);
    FAIL() << "half a file was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_THAT(e.what(), HasSubstr("noise_floor_broken.json"));
  }
}

}  // namespace
}  // namespace nibble
