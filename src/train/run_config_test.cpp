// SPDX-License-Identifier: Apache-2.0
#include "train/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/usage_error_testing.h"
#include "models/parameters.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::usage_error;

RunConfig parse(const std::string& text, const std::vector<std::string>& sets = {}) {
  return parse_run_config(text, "run.toml", sets);
}

std::string parse_error(const std::string& text, const std::vector<std::string>& sets = {}) {
  return usage_error([&] { parse(text, sets); });
}

TEST(RunConfig, AnEmptyFileIsTheDefaults) { EXPECT_EQ(parse(""), RunConfig{}); }

TEST(RunConfig, ReadsEveryTypeOfValue) {
  const RunConfig c = parse(R"(
[model]
preset = "hybrid-tiny"
vocab_size = 2048
[optimizer]
lr = 1
[training]
steps = 12
[precision]
rht = false
keep_bf16 = ["*.mamba.out", "blocks.3.*"]
[[precision.override]]
layers = "*.mlp.*"
gemm = "wgrad"
until_step = 100
format = "bf16"
)");
  EXPECT_EQ(c.model.preset, "hybrid-tiny");
  EXPECT_EQ(c.model.fields.vocab_size, 2048);
  EXPECT_EQ(c.optimizer.lr, 1.0);
  EXPECT_EQ(c.training.steps, 12);
  EXPECT_EQ(c.precision.rht, false);
  EXPECT_EQ(c.precision.keep_bf16, (std::vector<std::string>{"*.mamba.out", "blocks.3.*"}));
  ASSERT_EQ(c.precision.overrides.size(), 1u);
  EXPECT_EQ(c.precision.overrides[0].gemm, "wgrad");
  EXPECT_EQ(c.precision.overrides[0].until_step, 100);
}

TEST(RunConfig, AnUnknownKeyNamesFileLineAndTheNearestKey) {
  const std::string text = parse_error("[training]\nsteps = 3\nmirco_batch = 2\n");
  EXPECT_THAT(text, HasSubstr("run.toml:3"));
  EXPECT_THAT(text, HasSubstr("training.mirco_batch"));
  EXPECT_THAT(text, HasSubstr("did you mean \"training.micro_batch\"?"));
}

TEST(RunConfig, AKeyOfAnotherSectionIsSuggestedThere) {
  EXPECT_THAT(parse_error("[training]\nlr = 0.1\n"), HasSubstr("did you mean \"optimizer.lr\"?"));
  EXPECT_THAT(parse_error("steps = 3\n"), HasSubstr("did you mean \"training.steps\"?"));
}

TEST(RunConfig, AnUnknownSectionSuggestsTheNearest) {
  const std::string text = parse_error("[training]\n[optimiser]\nlr = 1.0\n");
  EXPECT_THAT(text, HasSubstr("run.toml:2"));
  EXPECT_THAT(text, HasSubstr("did you mean \"optimizer\"?"));
}

TEST(RunConfig, AnUnknownKeyOfAnOverrideIsFound) {
  EXPECT_THAT(parse_error("[[precision.override]]\nfromat = \"bf16\"\n"),
              HasSubstr("did you mean \"precision.override.format\"?"));
}

TEST(RunConfig, AWrongTypeSaysWhatWasFound) {
  const std::string text = parse_error("[training]\nsteps = \"many\"\n");
  EXPECT_THAT(text, HasSubstr("run.toml:2: training.steps must be an integer, not a string"));
  EXPECT_THAT(parse_error("[precision]\nrht = 1\n"), HasSubstr("must be true or false"));
  EXPECT_THAT(parse_error("[precision]\nkeep_bf16 = [1]\n"), HasSubstr("must be a string"));
  EXPECT_THAT(parse_error("[precision]\noverride = 3\n"), HasSubstr("[[precision.override]]"));
}

TEST(RunConfig, BrokenTomlNamesTheLine) {
  EXPECT_THAT(parse_error("[training]\nsteps = = 3\n"), HasSubstr("run.toml:2: not valid TOML"));
}

TEST(RunConfig, AMissingFileIsNamed) {
  EXPECT_THAT(usage_error([] { load_run_config("no/such.toml"); }), HasSubstr("no/such.toml"));
}

TEST(Sets, LieOverTheFile) {
  const RunConfig c = parse("[training]\nsteps = 3\nname = \"a\"\n",
                            {"training.steps=200", "model.preset=llama-tiny", "training.name=\"b\"",
                             "precision.rht=false", "precision.keep_bf16=[\"*.out\"]", "optimizer.lr=3e-4"});
  EXPECT_EQ(c.training.steps, 200);
  EXPECT_EQ(c.model.preset, "llama-tiny");
  EXPECT_EQ(c.training.name, "b");
  EXPECT_EQ(c.precision.rht, false);
  EXPECT_EQ(c.precision.keep_bf16, std::vector<std::string>{"*.out"});
  EXPECT_EQ(c.optimizer.lr, 3e-4);
}

TEST(Sets, ATextKeyTakesTheTextWhateverElseItCouldMean) {
  for (const char* text : {"nan", "7", "true", "2024-01-01", "[1]", "1e3"})
    EXPECT_EQ(parse("", {std::string("training.name=") + text}).training.name, text);
  EXPECT_EQ(parse("", {"model.activation=7"}).model.fields.activation, "7");   // a string that may be unset
  EXPECT_EQ(parse("", {"data.corpus=\"a\"\nx=1"}).data.corpus, "\"a\"\nx=1");  // not one TOML value
  EXPECT_THAT(parse_error("[training]\nname = 7\n"), HasSubstr("must be a string"));
}

TEST(Sets, GiveOverridesAsAListAndCheckTheirKeys) {
  const RunConfig c = parse("", {"precision.override=[{gemm=\"wgrad\", format=\"bf16\"}]"});
  ASSERT_EQ(c.precision.overrides.size(), 1u);
  EXPECT_EQ(c.precision.overrides[0].gemm, "wgrad");
  const std::string text = parse_error("", {"precision.override=[{fromat=\"bf16\"}]"});
  EXPECT_THAT(text, HasSubstr("--set precision.override="));
  EXPECT_THAT(text, HasSubstr("did you mean \"precision.override.format\""));
  EXPECT_THAT(parse_error("", {"precision.override.format=bf16"}), HasSubstr("give the list"));
}

TEST(Sets, ErrorsNameTheOption) {
  EXPECT_THAT(parse_error("", {"training.stpes=2"}), HasSubstr("did you mean \"training.steps\"?"));
  EXPECT_THAT(parse_error("", {"training.steps=many"}),
              HasSubstr("--set training.steps=many: training.steps must be"));
  EXPECT_THAT(parse_error("", {"steps=2"}), HasSubstr("expected section.key=value"));
}

TEST(Values, ThatNoRunCanHaveAreRefused) {
  EXPECT_THAT(parse_error("", {"training.steps=0"}), HasSubstr("training.steps = 0 must be at least 1"));
  EXPECT_THAT(parse_error("", {"training.micro_batch=3"}), HasSubstr("must divide training.batch = 8"));
  EXPECT_THAT(parse_error("", {"schedule.kind=cosin"}), HasSubstr("did you mean \"cosine\"?"));
  EXPECT_THAT(parse_error("", {"precision.recipe=nvpf4"}), HasSubstr("did you mean \"nvfp4\"?"));
  EXPECT_THAT(parse_error("", {"optimizer.lr=nan"}), HasSubstr("optimizer.lr"));
  EXPECT_THAT(parse_error("", {"training.backend=gpu"}), HasSubstr("ref, cpu, cuda"));
}

TEST(RunConfig, ARunsNameIsOneFolder) {
  for (const char* name : {"", ".", "..", "a/b", "/tmp/a", "..\\\\a", "..\\u0000"})
    EXPECT_THAT(parse_error(std::string("[training]\nname = \"") + name + "\"\n"),
                HasSubstr("training.name"));
  EXPECT_EQ(parse("[training]\nname = \"a..b.c\"\n").training.name, "a..b.c");
}

TEST(RunConfig, AnOverrideHoldsForSomeStep) {
  const std::string text =
      parse_error("[[precision.override]]\nfrom_step = 8\nuntil_step = 8\nformat = \"bf16\"\n");
  EXPECT_THAT(text, HasSubstr("precision.override.until_step = 8"));
  EXPECT_THAT(parse_error("[[precision.override]]\nfrom_step = -1\n"), HasSubstr("from_step"));
}

#ifndef NIBBLE_WITH_CUDA
TEST(RunConfig, ABackendThatThisBinaryLacksIsRefusedBeforeAnythingIsRead) {
  EXPECT_THAT(parse_error("[training]\nbackend = \"cuda\"\n"), HasSubstr("cuda"));
}
#endif

TEST(RunConfig, HasNoKeyThatDoesNothing) {
  EXPECT_THAT(parse_error("[metrics]\nevery = 2\n"), HasSubstr("metrics.every"));
}

TEST(ToToml, ReadsBackAsTheSameConfiguration) {
  RunConfig c;
  EXPECT_EQ(parse(to_toml(c)), c);
  c.model.preset = "hybrid-tiny";
  c.model.fields.norm_eps = 1e-6;
  c.model.fields.tied = true;
  c.data.corpus = "a \"quoted\"\\ name\twith \x01 é";
  c.optimizer.lr = 0.1 + 0.2;
  c.optimizer.clip = 3;
  c.precision.keep_bf16 = {"*.out"};
  OverrideSection forward;
  forward.gemm = "fprop";
  forward.from_step = 7;
  forward.format = "bf16";
  OverrideSection unrotated;
  unrotated.rotation = 0;
  c.precision.overrides = {forward, unrotated};
  c.faults.inject_nan_step = 5;
  EXPECT_EQ(parse(to_toml(c)), c) << to_toml(c);
  EXPECT_EQ(to_toml(parse(to_toml(c))), to_toml(c));
}

TEST(Resume, NeedsEqualMathsAndNothingElse) {
  RunConfig before;
  RunConfig now = before;
  now.training.threads = 7;
  now.checkpoint.every = 10;
  now.training.name = "elsewhere";
  check_can_resume(before, now);
  now.optimizer.lr = 0.5;
  now.precision.rht = false;
  now.precision.overrides = {{.gemm = "fprop"}};
  const std::string text = usage_error([&] { check_can_resume(before, now); });
  EXPECT_THAT(text, HasSubstr("optimizer.lr was 0.001 and is 0.5"));
  EXPECT_THAT(text, HasSubstr("precision.rht was unset and is false"));
  EXPECT_THAT(text, HasSubstr("precision.override[0].gemm was unset and is \"fprop\""));
  EXPECT_THAT(text, Not(HasSubstr("threads")));
}

TEST(Keys, AreUniqueAndExplained) {
  std::set<std::string> seen;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(seen.insert(key.section + "." + key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
  }
  EXPECT_THAT(config_reference(), HasSubstr("[protocol]"));
  EXPECT_THAT(config_reference(), HasSubstr("[[precision.override]]"));
}

TEST(ModelOf, LaysFieldsOverThePreset) {
  const DecoderSpec spec = model_of(parse("[model]\npreset = \"llama-tiny\"\nvocab_size = 512\n"));
  EXPECT_EQ(spec.vocab, 512);
  EXPECT_EQ(spec.blocks(), 4);
  EXPECT_THAT(usage_error([] { model_of(parse("")); }), HasSubstr("model.preset"));
}

TEST(ModelOf, ReadsAHuggingFaceFolder) {
  RunConfig c;
  c.model.path = NIBBLE_SOURCE_DIR "/tests/golden/models/nemotron_h";
  EXPECT_EQ(model_of(c).family, "nemotron_h");
  c.model.fields.hidden = 8;
  usage_error([&] { model_of(c); });
}

TEST(Recipes, OfTheCandidateHaveTheSwitchesAndThoseOfTheBaselineNone) {
  const RunConfig c =
      parse("[model]\npreset = \"paper-8b\"\n[precision]\nrht = false\nprofile = \"nvfp4.te213\"\n");
  const Recipe candidate = candidate_recipe(c);
  EXPECT_EQ(candidate.wgrad.a.rotation, 0);
  EXPECT_EQ(candidate.fprop.a.profile, Profile::Te213);
  EXPECT_EQ(candidate.first_blocks, 0);  // the preset's
  EXPECT_EQ(candidate.last_blocks, 8);
  EXPECT_EQ(baseline_recipe(c).name, "bf16");
}

TEST(Recipes, TakeTheOptionsOfRotationAndStochasticRounding) {
  const Recipe r = candidate_recipe(
      parse("[precision]\nrht_size = 64\nrht_signs = \"redrawn\"\nrht_gemms = [\"dgrad\", \"wgrad\"]\n"
            "sr_bits = 4\nsr_headroom = true\n"));
  EXPECT_EQ(r.dgrad.b.rotation, 64);
  EXPECT_EQ(r.wgrad.a.signs, RotationSigns::Redrawn);
  EXPECT_EQ(r.fprop.a.rotation, 0);
  EXPECT_EQ(r.dgrad.a.random_bits, 4);
  EXPECT_TRUE(r.dgrad.a.headroom);
  EXPECT_THAT(parse_error("[precision]\nrht_signs = \"random\"\n"), HasSubstr("fixed, redrawn, none"));
  EXPECT_THAT(parse_error("[precision]\nrht_gemms = [\"forward\"]\n"), HasSubstr("fprop, dgrad, wgrad"));
  EXPECT_THAT(usage_error([&] { candidate_recipe(parse("[precision]\nrht_size = 3\n")); }),
              HasSubstr("power of two from 2 to 128"));
}

TEST(Recipes, TakeTheTypesOfTheResidualStreamOfItsGradientAndOfTheLogits) {
  const Recipe r = candidate_recipe(
      parse("[precision]\nresidual = \"fp32\"\nresidual_gradient = \"bf16\"\nlogits = \"bf16\"\n"));
  EXPECT_EQ(r.residual, Format::Fp32);
  EXPECT_EQ(r.residual_gradient, Format::Bf16);
  EXPECT_EQ(r.logits, Format::Bf16);
  EXPECT_EQ(candidate_recipe(parse("")).residual_gradient, Format::Fp32);
  EXPECT_THAT(parse_error("[precision]\nresidual_gradient = \"fp16\"\n"), HasSubstr("bf16, fp32"));
  EXPECT_THAT(usage_error([] {
                candidate_recipe(parse("[precision]\nrecipe = \"fp32\"\nresidual_gradient = \"bf16\"\n"));
              }),
              HasSubstr("choose another recipe"));
}

TEST(Recipes, OfAnUnquantisedRunTakeNoCountsFromThePreset) {
  const Recipe recipe =
      candidate_recipe(parse("[model]\npreset = \"paper-8b\"\n[precision]\nrecipe = \"bf16\"\n"));
  EXPECT_FALSE(recipe.last_blocks.has_value());
}

TEST(PrecisionSwitch, TakesAShareOrACountOfSteps) {
  const RunConfig c = parse(R"(
[model]
preset = "llama-tiny"
[training]
steps = 1000
[[precision.switch]]
at = 500
recipe = "mxfp8"
[[precision.switch]]
at = "82%"
gemms = ["fprop"]
)");
  ASSERT_EQ(c.precision.switches.size(), 2u);
  EXPECT_EQ(c.precision.switches[1].recipe, "bf16");
  const Recipe r = candidate_recipe(c);
  ASSERT_EQ(r.switches.size(), 2u);
  EXPECT_EQ(r.switches[0].from_step, 500);
  EXPECT_EQ(r.switches[0].gemms, kAllGemms);
  EXPECT_EQ(r.switches[0].to.name, "mxfp8");
  EXPECT_EQ(r.switches[1].from_step, 820);
  EXPECT_EQ(r.switches[1].gemms, (GemmSet{true, false, false}));
  EXPECT_TRUE(baseline_recipe(c).switches.empty());
}

TEST(PrecisionSwitch, RoundsAShareToTheNearestStep) {
  const auto step = [](const char* at, std::int64_t steps) { return step_of({at}, steps, "at"); };
  EXPECT_EQ(step("82%", 300), 246);
  EXPECT_EQ(step("82%", 7), 6);       // 5.74
  EXPECT_EQ(step("12.5%", 100), 13);  // halves go up
  EXPECT_EQ(step("0.1%", 1000), 1);
  EXPECT_EQ(step("246", 300), 246);
  EXPECT_EQ(step("82%", 1000000), 820000);
}

TEST(PrecisionSwitch, TakesThePresetsCountsWhereItsRecipeScalesThem) {
  const RunConfig c = parse(
      "[model]\npreset = \"paper-8b\"\n[precision]\nrecipe = \"bf16\"\n[[precision.switch]]\nat = 9\n"
      "recipe = \"nvfp4\"\n[[precision.switch]]\nat = 10\nrecipe = \"fp8-paper\"\n");
  const Recipe r = candidate_recipe(c);
  EXPECT_FALSE(r.last_blocks.has_value());
  EXPECT_EQ(r.switches[0].to.first_blocks, 0);
  EXPECT_EQ(r.switches[0].to.last_blocks, 8);
  EXPECT_EQ(r.switches[1].to.last_blocks, 2);
}

TEST(PrecisionSwitch, EachWrongValueGivesItsRemedy) {
  const auto wrong = [](const std::string& keys) {
    return parse_error("[training]\nsteps = 100\n[[precision.switch]]\n" + keys + "\n");
  };
  for (const char* at : {"at = \"82\\u00A0%\"", "at = \"late\"", "at = \"\"", "at = \"%\"", "at = \"-5%\"",
                         "at = \"101%\"", "at = -5", "at = \"1e1\"", "at = \"8.5\"", "recipe = \"bf16\""})
    EXPECT_THAT(wrong(at), HasSubstr("is no step; give a count of steps such as 820")) << at;
  for (const char* at : {"at = 0", "at = 100", "at = \"100%\"", "at = \"0.1%\""})
    EXPECT_THAT(wrong(at), HasSubstr("give a step from 1 to 99")) << at;
  EXPECT_THAT(wrong("at = 8.5"), HasSubstr("run.toml:4: precision.switch.at must be a count of steps"));
  EXPECT_THAT(wrong("at = 5\nrecipe = \"bf61\""), HasSubstr("did you mean \"bf16\""));
  EXPECT_THAT(wrong("at = 5\ngemms = [\"forward\"]"), HasSubstr("one of fprop, dgrad, wgrad"));
  EXPECT_THAT(wrong("at = 5\ngemms = []"), HasSubstr("leave the key out for all three"));
  EXPECT_THAT(wrong("at = 5\n[[precision.switch]]\nat = \"4%\""), HasSubstr("in the order of their steps"));
  EXPECT_THAT(wrong("ta = 5"), HasSubstr("did you mean \"precision.switch.at\"?"));
  EXPECT_THAT(parse_error("[precision]\nswitch = 3\n"), HasSubstr("[[precision.switch]]"));
}

TEST(PrecisionSwitch, IsAListOnTheCommandLine) {
  const RunConfig c =
      parse("", {"precision.switch=[{at=\"82%\", recipe=\"mxfp8\", gemms=[\"fprop\"]}, {at=250}]"});
  ASSERT_EQ(c.precision.switches.size(), 2u);
  EXPECT_EQ(c.precision.switches[0].at.text, "82%");
  EXPECT_EQ(c.precision.switches[1].at.text, "250");
  EXPECT_THAT(parse_error("", {"precision.switch.at=3"}), HasSubstr("precision.switch=[{at=\"82%\""));
  EXPECT_THAT(parse_error("", {"precision.switch=[{at=3, gemm=\"fprop\"}]"}),
              HasSubstr("did you mean \"precision.switch.gemms\"?"));
}

TEST(PrecisionSwitch, ReadsBackAndIsPartOfTheIdentity) {
  RunConfig c;
  c.precision.switches = {{.at = {"5"}, .recipe = "mxfp8"}, {.at = {"82%"}, .gemms = {"dgrad", "wgrad"}}};
  EXPECT_EQ(parse(to_toml(c)), c) << to_toml(c);
  EXPECT_THAT(to_toml(c), HasSubstr("\nat = 5\n"));
  RunConfig before = c;
  c.precision.switches[1].at.text = "83%";
  EXPECT_NE(maths_values(before), maths_values(c));
  EXPECT_THAT(usage_error([&] { check_can_resume(before, c); }),
              HasSubstr("precision.switch[1].at was \"82%\" and is \"83%\""));
  EXPECT_THAT(config_reference(), HasSubstr("[[precision.switch]]  Another recipe from a step on"));
}

class ShippedConfig : public ::testing::TestWithParam<const char*> {};

TEST_P(ShippedConfig, DescribesARunThatItsRecipeAccepts) {
  const RunConfig c = load_run_config(std::string(NIBBLE_SOURCE_DIR "/configs/") + GetParam());
  const DecoderSpec spec = model_of(c);
  const std::vector<LinearInfo> all = linears(spec);
  check_recipe(candidate_recipe(c), all, c.micro_batch() * c.training.sequence);
  check_patterns(c.telemetry.layers, all, "telemetry.layers");
  EXPECT_LE(c.training.sequence, spec.max_seq);
}

INSTANTIATE_TEST_SUITE_P(All, ShippedConfig,
                         ::testing::Values("quickstart.toml", "pilot-llama-124m.toml", "pilot-hybrid-1b.toml",
                                           "experiments/cpu-order.toml", "experiments/ladder-30m.toml",
                                           "experiments/ladder-50m.toml", "experiments/ladder-100m.toml",
                                           "experiments/ladder-200m.toml"));

TEST(Alarms, AreATableOfThresholdsInTheFileAndOnTheCommandLine) {
  const RunConfig c = parse("[telemetry]\nevery = 7\n[telemetry.alarms]\nflushed = 0.25\nrise_window = 9\n");
  EXPECT_EQ(c.telemetry.every, 7);
  EXPECT_EQ(c.telemetry.alarms.flushed, 0.25);
  EXPECT_EQ(c.telemetry.alarms.rise_window, 9);
  EXPECT_EQ(parse(to_toml(c)), c);
  EXPECT_EQ(parse("", {"telemetry.alarms.sqnr_db=12"}).telemetry.alarms.sqnr_db, 12);
  EXPECT_EQ(
      parse("[telemetry.alarms]\nflushed = 0.25\n", {"telemetry.alarms.sqnr_db=12"}).telemetry.alarms.flushed,
      0.25);
  EXPECT_EQ(maths_values(c), maths_values(RunConfig{})) << "a threshold changes no number of the run";
}

TEST(Alarms, WrongKeysAndValuesAreNamed) {
  const auto says = [](const std::string& text, const char* part, const std::vector<std::string>& sets = {}) {
    EXPECT_THAT(parse_error(text, sets), HasSubstr(part));
  };
  says("[telemetry.alarms]\nflush = 0.2\n", "did you mean \"telemetry.alarms.flushed\"");
  says("[telemetry]\nalarms = 3\n", "under [telemetry.alarms]");
  says("[telemetry.alarms]\nflushed = 2.0\n", "telemetry.alarms.flushed");
  says("[telemetry.alarms]\nflushed = \"much\"\n", "telemetry.alarms.flushed must be a number");
  says("[telemetry]\nstatistics = [\"snqr_db\"]\n", "did you mean \"sqnr_db\"");
  says("[telemetry]\ngemms = [\"forward\"]\n", "telemetry.gemms");
  says("", "telemetry.alarms.rise_window", {"telemetry.alarms.rise_window=0"});
  says("", "did you mean", {"telemetry.alarms.rise_windw=3"});
}

TEST(Quickstart, FitsItsBudget) {
  const RunConfig c = load_run_config(NIBBLE_SOURCE_DIR "/configs/quickstart.toml");
  double matmul = 0;
  for (const ParamInfo& p : parameters(model_of(c)))
    matmul += p.is_matmul ? static_cast<double>(p.size()) : 0;
  EXPECT_LE(matmul * static_cast<double>(c.tokens_per_step()), 5e9);
  EXPECT_GE(c.training.steps, 300);
  EXPECT_EQ(c.data.vocab_size, model_of(c).vocab);
}

}  // namespace
}  // namespace nibble
