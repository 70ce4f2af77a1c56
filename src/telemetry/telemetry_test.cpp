// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <sstream>

#include "base/error.h"
#include "telemetry/alarms.h"
#include "telemetry/console_sink.h"
#include "telemetry/json_line.h"
#include "telemetry/jsonl_sink.h"
#include "telemetry/z_score.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::filesystem::path scratch(const std::string& name) {
  const auto dir =
      std::filesystem::path(::testing::TempDir()) / ("nibble_telemetry_" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  return dir / name;
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(JsonLine, DoublesReadBackBitForBit) {
  for (const double v : {0.1, 1.0 / 3.0, 1e-320, 6.02214076e23, -0.0}) {
    EXPECT_EQ(std::strtod(JsonLine::number(v).c_str(), nullptr), v);
  }
  EXPECT_EQ(std::strtof(JsonLine::number(0.1f).c_str(), nullptr), 0.1f);
}

TEST(JsonLine, NonFiniteNumbersAreStringsAndTextIsEscaped) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto line = JsonLine("t").add("a", std::nan("")).add("b", -inf).add("c", "say \"hi\"\n\x01\\").str();
  EXPECT_EQ(line, R"({"type":"t","a":"NaN","b":"-Infinity","c":"say \"hi\"\n\u0001\\"})");
}

TEST(JsonLine, AnAbsentOptionalLeavesNoTrace) {
  EXPECT_EQ(JsonLine("t").add("mfu", std::optional<double>{}).str(), R"({"type":"t"})");
}

TEST(JsonLine, ATaskHasAKeyAMetricAndAnotherForItsError) {
  const TaskEvent e{.step = 30, .tokens = 960, .task = "isa", .examples = 4, .metrics = {{"acc", 0.5, 0.25}}};
  EXPECT_EQ(json_line(e),
            R"({"type":"task","step":30,"tokens":960,"task":"isa","n":4,"acc":0.5,"acc_stderr":0.25})");
}

TEST(LineFile, ResumeDropsLaterStepsAndAHalfWrittenLine) {
  const auto path = scratch("resume.jsonl");
  {
    MetricsJsonl log(path);
    log.on(HeaderEvent{.run = "r"});
    for (int step = 1; step <= 5; ++step) log.on(TrainEvent{.step = step, .loss = 1.0 / step});
    log.sync();
  }
  const std::string whole = slurp(path);
  {
    std::ofstream out(path, std::ios::app);
    out << R"({"type":"train","step":3,"lo)";
  }
  {
    MetricsJsonl log(path, 3);
    log.on(HeaderEvent{.run = "r"});
    for (int step = 4; step <= 5; ++step) log.on(TrainEvent{.step = step, .loss = 1.0 / step});
  }
  EXPECT_EQ(slurp(path), whole);
}

TEST(LineFile, WithoutResumeTheFileStartsEmpty) {
  const auto path = scratch("fresh.jsonl");
  { LineFile(path, {}).write("old"); }
  { LineFile(path, {}).write("new"); }
  EXPECT_EQ(slurp(path), "new\n");
}

TEST(LineFile, AFullDiskIsAnErrorWithARemedy) {
  LineFile full("/dev/full", 0);
  try {
    full.write("x");
    FAIL() << "writing to a full device succeeded";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("/dev/full"));
    EXPECT_THAT(e.what(), HasSubstr("free some space"));
  }
}

TEST(ZScore, IsTheDistanceFromTheEarlierWindowInItsOwnSd) {
  ZScore z(128);
  for (int i = 0; i < 128; ++i) z.push(i % 2 ? 1.0 : -1.0);
  EXPECT_NEAR(*z.push(3.0), 3.0 / std::sqrt(128.0 / 127.0), 1e-12);
}

TEST(ZScore, SaysNothingEarlyOrForConstantOrNonFiniteValues) {
  ZScore z;
  EXPECT_FALSE(z.push(1.0));
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(z.push(1.0));
  EXPECT_FALSE(z.push(std::nan("")));
  EXPECT_FALSE(z.push(1.0)) << "the NaN entered the window";
}

TEST(ScaleBin, CoversE4M3) {
  EXPECT_EQ(scale_bin(448), 15);
  EXPECT_EQ(scale_bin(256), 15);
  EXPECT_EQ(scale_bin(1), 7);
  EXPECT_EQ(scale_bin(std::ldexp(1, -6)), 1);
  EXPECT_EQ(scale_bin(std::ldexp(1, -9)), 0);
  EXPECT_EQ(scale_bin(0), 0);
}

std::string console_output(const BaselineLosses& baseline) {
  const auto path = scratch("console.txt");
  std::FILE* file = std::fopen(path.c_str(), "w");
  ConsoleSink sink({.out = file, .every = 10});
  sink.attach_baseline(baseline);
  sink.on(HeaderEvent{.run = "demo", .arm = "candidate", .recipe = "nvfp4", .backend = "cpu", .steps = 40});
  sink.on(QuantEvent{.step = 9, .flushed = 0.01});
  sink.on(QuantEvent{.step = 9, .flushed = 0.021});
  for (int step = 1; step <= 40; ++step) {
    sink.on(TrainEvent{.step = step,
                       .loss = 2.02 + 0.001 * (step % 3),
                       .lr = 3e-4,
                       .grad_norm = 0.84,
                       .tokens_per_s = 12400,
                       .step_ms = 500});
  }
  sink.on(EvalEvent{.step = 40, .loss = 2.02});
  std::fclose(file);
  return slurp(path);
}

TEST(ConsoleSink, PrintsThePlainColumnsWhenNotATerminal) {
  const std::string text = console_output({.train = {{40, 2.0}}, .val = {{40, 2.0}}});
  EXPECT_THAT(text, HasSubstr("candidate step 40/40 100% | loss 2.02100 ("));
  EXPECT_THAT(text, HasSubstr("| gap +1.05% | norm 0.84 | lr 3.0e-04 | 12.4k tok/s | uflow 2.1% | eta 0s"));
  EXPECT_THAT(text, HasSubstr("candidate step 20/40 50% |"));
  EXPECT_THAT(text, HasSubstr("eta 10s"));
  EXPECT_THAT(text, HasSubstr("eval step 40/40 | validation loss 2.02000 | gap +1.00%"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_THAT(text, Not(HasSubstr("step 11/40")));
}

TEST(ConsoleSink, ShowsAGapOnlyWithABaseline) { EXPECT_THAT(console_output({}), Not(HasSubstr("gap"))); }

TEST(ConsoleSink, SaysAnAlarmOnceForASubject) {
  const auto path = scratch("alarms.txt");
  std::FILE* file = std::fopen(path.c_str(), "w");
  ConsoleSink sink({.out = file});
  for (const int step : {25, 50})
    for (const Severity severity : {Severity::Warning, Severity::Fault})
      sink.on(AlarmEvent{.step = step,
                         .severity = severity,
                         .rule = "sqnr",
                         .where = {"a", 0, "fprop", "x"},
                         .text = "text"});
  std::fclose(file);
  EXPECT_EQ(slurp(path), "warning: step 25: text\nfault: step 25: text\n");
}

TEST(ConsoleSink, DurationsAndCountsAreShort) {
  EXPECT_EQ(short_duration(45), "45s");
  EXPECT_EQ(short_duration(134), "2m14s");
  EXPECT_EQ(short_duration(8040), "2h14m");
  EXPECT_EQ(short_duration(std::nan("")), "?");
  EXPECT_EQ(short_count(12400), "12.4k");
  EXPECT_EQ(short_count(520000), "520k");
  EXPECT_EQ(short_count(1.2e6), "1.20M");
}

TEST(CheckGemm, RoundingToFourBitsIsExplained) {
  const GemmCheck c{
      .where = {"blocks.0.mlp.up", 0, "wgrad", ""}, .relative_error = 0.17, .sqnr_a_db = 17, .sqnr_b_db = 20};
  EXPECT_NEAR(explained_gemm_error(17, 20), 0.173, 0.001);
  EXPECT_FALSE(check_gemm(c, {}));
}

TEST(CheckGemm, RotationsThatDifferAreAFaultThatNamesTheGemm) {
  // Two operands rotated by different signs give a product unrelated to the true one: error about sqrt 2.
  const GemmCheck c{.step = 7,
                    .where = {"blocks.0.mlp.up", 0, "wgrad", ""},
                    .relative_error = 1.41,
                    .sqnr_a_db = 17,
                    .sqnr_b_db = 20};
  const auto alarm = check_gemm(c, {});
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->severity, Severity::Fault);
  EXPECT_THAT(alarm->text, StartsWith("blocks.0.mlp.up wgrad: "));
  EXPECT_THAT(alarm->text, HasSubstr("rotation"));
}

TEST(CheckGemm, NaNIsAFault) {
  EXPECT_EQ(check_gemm({.relative_error = std::nan("")}, {})->severity, Severity::Fault);
}

/// ||A' B' - A B|| / ||A B|| of random matrices whose 16-blocks along k were multiplied by `signs_a`,
/// `signs_b` and the Hadamard matrix, with noise of the given size: the fault planted for real, in doubles.
double rotated_product_error(bool same_signs, double noise) {
  constexpr int kRows = 24, kK = 256;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const auto matrix = [&] {
    std::vector<double> m(kRows * kK);
    for (auto& v : m) v = normal(random);
    return m;
  };
  const auto rotate = [&](std::vector<double> m, std::uint32_t signs) {
    for (std::size_t i = 0; i < m.size(); ++i) m[i] *= signs >> (i % 16) & 1 ? -1 : 1;
    for (int h = 1; h < 16; h *= 2) {
      for (std::size_t i = 0; i < m.size(); ++i) {
        if (i & h) continue;
        const double a = m[i], b = m[i + h];
        m[i] = a + b, m[i + h] = a - b;
      }
    }
    for (auto& v : m) v = v * 0.25 + noise * normal(random);
    return m;
  };
  const auto a = matrix(), b = matrix();
  const auto qa = rotate(a, 0xB3A5), qb = rotate(b, same_signs ? 0xB3A5 : 0x1C6F);
  double error = 0, norm = 0;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kRows; ++j) {
      double y = 0, q = 0;
      for (int k = 0; k < kK; ++k) y += a[i * kK + k] * b[j * kK + k], q += qa[i * kK + k] * qb[j * kK + k];
      error += (q - y) * (q - y), norm += y * y;
    }
  }
  return std::sqrt(error / norm);
}

TEST(CheckGemm, SeparatesAPlantedSignFaultFromFourBitNoise) {
  const double noise = 0.12;  // about 18.4 dB below the operands
  const double sqnr = -20 * std::log10(noise);
  const auto judge = [&](bool same) {
    return check_gemm(
        {.relative_error = rotated_product_error(same, noise), .sqnr_a_db = sqnr, .sqnr_b_db = sqnr}, {});
  };
  EXPECT_NEAR(rotated_product_error(true, noise), explained_gemm_error(sqnr, sqnr), 0.03);
  EXPECT_FALSE(judge(true));
  ASSERT_TRUE(judge(false));
  EXPECT_EQ(judge(false)->severity, Severity::Fault);
}

TEST(CheckOperand, NamesWhatIsWrongAndWhere) {
  const OperandName dy{"blocks.1.mlp.up", 1, "dgrad", "dy"};
  const auto rule = [&](OperandCheck c) {
    c.where = dy;
    const auto alarm = check_operand(c, {});
    if (alarm) {
      EXPECT_EQ(alarm->severity, Severity::Fault);
      EXPECT_THAT(alarm->text, StartsWith("blocks.1.mlp.up dgrad operand dy: "));
    }
    return alarm ? alarm->rule : "";
  };
  EXPECT_EQ(rule({.gain = 0.992, .bias = -0.007, .bias_error = 0.0001, .full_codes = 1.2}), "")
      << "a sound one";
  EXPECT_EQ(rule({.gain = 2}), "operand_gain");
  EXPECT_EQ(rule({.gain = std::nan("")}), "operand_gain");
  EXPECT_EQ(rule({.gain = 0.96, .bias = -0.23, .bias_error = 0.001}), "rounding_bias");
  EXPECT_EQ(rule({.gain = 0.96, .bias = -0.23, .bias_error = 0.05}), "") << "too few values to tell";
  EXPECT_EQ(rule({.gain = 1, .full_codes = 0.02}), "unused_range");
}

TEST(CheckGradientNorms, AreEqualWhileTheWeightsAreAndWhateverThePrecision) {
  const std::vector<double> baseline = {1.7, 1.6, 1.5, 1.9, 1.4, 1.3};
  std::vector<double> candidate = {1.701, 1.6, 1.507, 1.93, 1.42, 0.4};  // of the quickstart, and a late one
  EXPECT_FALSE(check_gradient_norms(baseline, candidate, {}));
  for (double& norm : candidate) norm /= 2;
  const auto lost = check_gradient_norms(baseline, candidate, {});
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->severity, Severity::Fault);
  EXPECT_THAT(lost->text, HasSubstr("0.50 times the baseline's"));
  EXPECT_FALSE(check_gradient_norms({1, 1}, {9, 9}, {})) << "too few steps to judge";
}

TEST(AlarmMonitor, BlocksThatVanishAreCountedWhateverTheBlocksThatWereZero) {
  AlarmMonitor monitor({});
  const auto alarms = monitor.inspect(
      {.step = 1, .where = {"a", 0, "dgrad", "dy"}, .zero_blocks = 0.5, .scale_zero = 0.1, .sqnr_db = 20});
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].rule, "scale_zero");
}

TEST(AlarmMonitor, DriftIsJudgedOnceTheMeanHasSettled) {
  AlarmMonitor monitor({});
  QuantEvent e{.step = 1, .where = {"blocks.1.mlp.down", 1, "fprop", "x"}, .amax_drift = 2.6, .sqnr_db = 20};
  for (int i = 0; i < AlarmRules{}.drift_after; ++i) EXPECT_TRUE(monitor.inspect(e).empty()) << i;
  const auto alarms = monitor.inspect(e);
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].rule, "amax_drift");
}

TEST(AlarmMonitor, ALastingConditionIsOneAlarm) {
  AlarmMonitor monitor({});
  QuantEvent e{.step = 1, .where = {"blocks.1.attn.qkv", 1, "dgrad", "dy"}, .flushed = 0.6, .sqnr_db = 20};
  ASSERT_EQ(monitor.inspect(e).size(), 1u);
  e.step = 2;
  EXPECT_TRUE(monitor.inspect(e).empty());
  e.step = 3, e.flushed = 0.1;
  EXPECT_TRUE(monitor.inspect(e).empty());
  e.step = 4, e.flushed = 0.6;
  const auto again = monitor.inspect(e);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].rule, "flushed");
  EXPECT_THAT(again[0].text, StartsWith("blocks.1.attn.qkv dgrad operand dy: 60 %"));
}

/// The amax alarms of a tensor whose log2 amax is octaves(step), measured as two operands each `every` steps.
std::vector<AlarmEvent> amax_alarms(const std::function<double(double)>& octaves, int steps, int every) {
  AlarmMonitor monitor({});
  AmaxDrift of_x, of_xt;
  std::vector<AlarmEvent> out;
  for (int step = 1; step <= steps; step += step == 1 ? every - 1 : every) {
    for (const bool turned : {false, true}) {
      QuantEvent e{.step = step, .where = {"blocks.1.mlp.down", 1, "fprop", "x"}, .sqnr_db = 20};
      if (turned) e.where.gemm = "wgrad", e.where.operand = "x^T";
      e.amax = std::exp2(octaves(step) - (turned ? 0.5 : 0));
      e.amax_drift = (turned ? of_xt : of_x).push(e.step, e.amax);
      for (const AlarmEvent& a : monitor.inspect(e)) out.push_back(a);
    }
  }
  return out;
}

TEST(AlarmMonitor, AModelThatGrowsAsAPowerOfTheStepRaisesNoneHoweverOftenItIsMeasured) {
  for (const int every : {5, 25, 100})
    EXPECT_TRUE(amax_alarms([](double step) { return 1.5 * std::log2(step); }, 2000, every).empty()) << every;
}

TEST(AlarmMonitor, ATensorThatJumpsIsOneAlarmInAShortRunAndInALongOne) {
  for (const int steps : {300, 10'000}) {
    const auto alarms = amax_alarms(
        [&](double step) { return std::log2(step) + (step > 0.8 * steps ? 3.5 : 0); }, steps, steps / 12);
    ASSERT_EQ(alarms.size(), 1u) << steps;
    EXPECT_EQ(alarms[0].rule, "amax_drift");
    EXPECT_EQ(alarms[0].where.operand, "x") << "x^T of wgrad is the same tensor";
  }
}

TEST(AlarmMonitor, ARunawayIsSeen) {
  // Half an octave a measurement, from the middle of the run on.
  const auto alarms =
      amax_alarms([](double step) { return step < 5000 ? 0 : (step - 5000) / 200; }, 10'000, 100);
  ASSERT_GE(alarms.size(), 1u);
  EXPECT_LT(alarms[0].step, 6500);
}

TEST(AlarmMonitor, ATensorIsWellAgainWhenAllItsOperandsAre) {
  AlarmMonitor monitor({.drift_after = 0});
  QuantEvent x{.where = {"a", 0, "fprop", "x"}, .sqnr_db = 20},
      turned{.where = {"a", 0, "wgrad", "x^T"}, .sqnr_db = 20};
  std::vector<std::size_t> said;
  for (const auto& [of_x, of_turned] : {std::pair{1.0, 2.5}, {2.5, 1.0}, {1.0, 1.0}, {1.0, 2.5}}) {
    x.step = turned.step = x.step + 1;
    x.amax_drift = of_x, turned.amax_drift = of_turned;
    said.push_back(monitor.inspect(x).size() + monitor.inspect(turned).size());
  }
  EXPECT_THAT(said, ::testing::ElementsAre(1, 0, 0, 1));
}

TEST(Alarms, OfOneSubjectAreOneLineWithFirstAndLastStep) {
  const OperandName x{"a", 0, "fprop", "x"}, turned{"a", 0, "wgrad", "x^T"};
  const auto alarm = [](std::int64_t step, const char* rule, const OperandName& where, const char* arm) {
    return AlarmEvent{.step = step, .rule = rule, .where = where, .text = "text", .arm = arm};
  };
  const auto groups =
      grouped({alarm(125, "amax_drift", x, "candidate"), alarm(300, "amax_drift", turned, "candidate"),
               alarm(200, "amax_drift", x, "candidate_aa"), alarm(200, "flushed", x, "candidate"),
               alarm(200, "flushed", turned, "candidate")});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].when(), "steps 125 to 300, 3 times");
  EXPECT_THAT(groups[0].arms, ::testing::ElementsAre("candidate", "candidate_aa"));
  EXPECT_EQ(groups[1].when(), "step 200");
  EXPECT_EQ(groups[2].first.where, turned) << "what a quantiser does to x^T it need not do to x";
}

TEST(AlarmMonitor, ARiseWithinTheWindowIsSeenHoweverSlowAndEveryAlarmSaysWhatToDo) {
  AlarmMonitor monitor({.rise_octaves = 3, .rise_window = 8});
  QuantEvent e{.step = 1, .where = {"blocks.1.mlp.down", 1, "fprop", "x"}, .sqnr_db = 20};
  std::vector<AlarmEvent> alarms;
  for (int i = 0; i < 20 && alarms.empty(); ++i) {
    e.step = 1000 + i;  // of a run so long that all of the window is recent
    e.amax = std::exp2(i < 10 ? 0.1 * i : 1 + 0.5 * (i - 10));  // 0.1, then 0.5 octaves a measurement
    alarms = monitor.inspect(e);
  }
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].rule, "amax_rise");
  EXPECT_GT(*alarms[0].value, 3);
  EXPECT_EQ(*alarms[0].threshold, 3);
  EXPECT_THAT(alarms[0].remedy, HasSubstr("precision.keep_bf16 = [\"blocks.1.mlp.down\"]"));
  EXPECT_THAT(alarms[0].text, HasSubstr("fprop operand x"));
  EXPECT_THAT(json_line(alarms[0]), HasSubstr("\"threshold\":3"));
}

TEST(CheckGemm, AnErrorThatRoundingExplainsIsStillSaidAboveTheThreshold) {
  const GemmCheck c{
      .step = 3, .where = {"a", 0, "wgrad", ""}, .relative_error = 0.3, .sqnr_a_db = 9, .sqnr_b_db = 17};
  EXPECT_FALSE(check_gemm(c, {}));
  const auto alarm = check_gemm(c, {.output_error = 0.2});
  ASSERT_TRUE(alarm);
  EXPECT_EQ(alarm->rule, "output_error");
  EXPECT_EQ(alarm->severity, Severity::Warning);
}

TEST(TelemetryJsonl, WritesTheSelectedStatisticsAndWhatAlarmsNeed) {
  const std::string line =
      json_line(QuantEvent{.step = 1, .mse = 0.5, .cosine = 0.9}, {.statistics = {"mse"}});
  EXPECT_THAT(line, HasSubstr("\"mse\":0.5"));
  EXPECT_THAT(line, HasSubstr("\"cur_amax\":"));
  EXPECT_THAT(line, Not(HasSubstr("cosine")));
  EXPECT_THAT(json_line(QuantEvent{.cosine = 0.9}), HasSubstr("\"underflows%\":0"));
}

TEST(AmaxDrift, OneOctaveIsOne) {
  AmaxDrift drift;
  EXPECT_EQ(drift.push(1, 3.0), 0);
  EXPECT_DOUBLE_EQ(drift.push(2, 6.0), 1.0);
  EXPECT_EQ(drift.push(3, 0.0), 0);
}

TEST(AmaxDrift, ForgetsTheFirstHalfOfTheStepsButNotTheLastMeasurement) {
  AmaxDrift drift;
  drift.push(1, 1.0);
  EXPECT_DOUBLE_EQ(drift.push(25, 4.0), 2.0) << "step 1 is all there is";
  EXPECT_DOUBLE_EQ(drift.push(50, 8.0), 1.0) << "of steps 25 to 50";
  EXPECT_DOUBLE_EQ(drift.push(75, 8.0), 0.0) << "of steps 38 to 75";
}

TEST(Sinks, HandEveryEventToEverySink) {
  struct Counter : Sink {
    int train = 0, synced = 0;
    void on(const TrainEvent&) override { ++train; }
    void sync() override { ++synced; }
  };
  auto a = std::make_shared<Counter>(), b = std::make_shared<Counter>();
  Sinks sinks;
  sinks.add(a), sinks.add(b);
  sinks.on(TrainEvent{}), sinks.on(EvalEvent{}), sinks.sync();
  EXPECT_EQ(a->train + b->train, 2);
  EXPECT_EQ(a->synced + b->synced, 2);
}

}  // namespace
}  // namespace nibble
