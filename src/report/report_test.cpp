// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "report/fixture.h"
#include "report/page_check.h"
#include "report/report.h"
#include "report/svg.h"
#include "telemetry/jsonl_sink.h"
#include "train/run_log.h"

namespace nibble {
namespace {

using fixture::page_folder;
using fixture::unbalanced_tag;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

TEST(Report, StandsAloneAndIsWellFormed) {
  for (const bool fault : {false, true}) {
    const std::string html = report_html(fixture::comparison({.fault = fault}));
    EXPECT_EQ(unbalanced_tag(html), "");
    for (const char* outside : {"http://", "https://", "<script", "<link", "<img", "@import", "url("}) {
      EXPECT_THAT(html, Not(HasSubstr(outside)));
    }
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_THAT(html, HasSubstr("@media print"));
  }
}

TEST(Report, ShowsEveryPartAReaderDecidesBy) {
  const ReportData d = fixture::comparison();
  const std::string html = report_html(d);
  for (const std::string& part :
       {std::string("PASS"), d.verdict.protocol_hash, d.context.command, std::string("this seed"),
        std::string("Gap to the baseline"), std::string("Loss curves"), std::string("Paired training loss"),
        std::string("A/A gap"), std::string("flushed to zero"), std::string("amax drift"),
        std::string("Ten worst operands"), std::string("Ends of the block scales"),
        std::string("Precision plan"), std::string("Hadamard"), std::string("bigram"),
        std::string("Environment")}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  write_report(page_folder() / "pass.html", d);
}

TEST(Report, LaysTheArmsTasksSideBySideWhereThereAreAny) {
  ReportData d = fixture::comparison();
  EXPECT_THAT(report_html(d), Not(HasSubstr("<h2>Tasks</h2>")));
  d.protocol.tasks = {.names = {"t<1>"}, .hash = "00", .steps = {290, 300}, .resamples = 10000};
  d.verdict.tasks = {{"t<1>", "acc", true, 500, 0.52, 0.47, -0.05, {-0.08, -0.02}},
                     {"t<1>", "gold_bits_per_byte", false, 500, 1.9, 1.91, 0.01, {-0.01, 0.03}}};
  const std::string html = report_html(d);
  EXPECT_EQ(unbalanced_tag(html), "");
  for (const char* part : {"<h2>Tasks</h2>", "t&lt;1&gt;", "-0.0500", "-0.0800 to -0.0200", "candidate worse",
                           "not told apart", "last 2 evaluations", "10000 times"})
    EXPECT_THAT(html, HasSubstr(part));
}

TEST(Report, IsTheSameForTheSameData) {
  EXPECT_EQ(report_html(fixture::comparison()), report_html(fixture::comparison()));
}

TEST(Report, AFaultStandsInTheVerdictBox) {
  const ReportData d = fixture::comparison({.fault = true});
  const std::string html = report_html(d);
  EXPECT_THAT(html, HasSubstr("class='verdict fail'"));
  EXPECT_THAT(html, HasSubstr("alarm fault"));
  EXPECT_THAT(html, HasSubstr("blocks.2.up wgrad"));
  write_report(page_folder() / "fault.html", d);
}

TEST(Report, AnAbortedRunIsDrawnUpToItsEnd) {
  const ReportData d = fixture::comparison({.gap = 0.06, .abort_at = 120});
  const std::string html = report_html(d);
  EXPECT_THAT(html, HasSubstr("class='verdict aborted'"));
  EXPECT_THAT(html, HasSubstr("No A/A arm was run"));
  EXPECT_EQ(unbalanced_tag(html), "");
  write_report(page_folder() / "aborted.html", d);
}

TEST(Report, NamesTheStepAtWhichThePrecisionSwitched) {
  ReportData d = fixture::comparison();
  EXPECT_THAT(report_html(d), Not(HasSubstr("forward: bf16")));
  for (ArmSeries& arm : d.arms) {
    if (arm.name == "candidate") arm.switches = {{246, "nvfp4", "bf16", "forward"}};
  }
  const std::string html = report_html(d);
  EXPECT_THAT(html, HasSubstr(">forward: bf16</text>"));
  EXPECT_THAT(html, HasSubstr("From step 246 on forward GEMMs ran as in bf16 instead of nvfp4"));
  EXPECT_EQ(unbalanced_tag(html), "");
}

TEST(Report, AGapInsideTheNoiseIsSaidPlainly) {
  const ReportData d = fixture::comparison({.gap = 0.004, .aa = 0.012});
  EXPECT_THAT(report_html(d), HasSubstr("inside the noise"));
  EXPECT_THAT(summary_text(d.verdict), HasSubstr("inside the noise"));
  write_report(page_folder() / "inconclusive.html", d);
}

TEST(Report, ALargeModelStaysSmallEnoughToSend) {
  ReportData d = fixture::comparison({.blocks = 64});
  const std::string html = report_html(d);
  EXPECT_LT(html.size(), 6'000'000u);
  write_report(page_folder() / "large.html", d);
}

TEST(Report, EscapesWhatUsersWrite) {
  ReportData d = fixture::comparison();
  d.context.command = "nibble validate \"<script>alert(1)</script>\"";
  EXPECT_THAT(report_html(d), Not(HasSubstr("<script>")));
}

TEST(Summary, NamesTheOutcomeTheGapAndWhatItCannotSay) {
  const ReportData d = fixture::comparison();
  const std::string text = summary_text(d.verdict);
  EXPECT_THAT(text, HasSubstr("VERDICT  PASS"));
  EXPECT_THAT(text, HasSubstr("What this run cannot say"));
  EXPECT_THAT(text, HasSubstr("Hadamard"));
  EXPECT_THAT(summary_markdown(d), HasSubstr("| final |"));
}

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks({0, 10}, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const double t : nice_ticks({-0.13, 3.7}, 5)) EXPECT_TRUE(t >= -0.13 && t <= 3.7);
  EXPECT_EQ(nice_ticks({1, 1}, 5).size(), 1u);
}

/// Writes a run's folder with the sinks a trainer uses.
void write_run(const fs::path& run, const ReportData& d) {
  fs::remove_all(run);
  for (const auto& a : d.arms) {
    const fs::path dir = run / a.name;
    fs::create_directories(dir);
    MetricsJsonl metrics(dir / "metrics.jsonl");
    metrics.on(a.header);
    for (const auto& e : a.train) metrics.on(e);
    for (const auto& e : a.evals) metrics.on(EvalEvent{e.step, e.tokens, e.loss, 4096});
    if (a.name != "candidate") continue;
    for (const auto& e : d.verdict.alarms) metrics.on(e);
    TelemetryJsonl telemetry(dir / "telemetry.jsonl");
    telemetry.on(a.header);
    // As a trainer writes: a step at a time.
    std::set<std::int64_t> steps;
    for (const auto& e : d.telemetry.gemms) steps.insert(e.step);
    const auto write = [&](const auto& events, std::int64_t step) {
      for (const auto& e : events)
        if (e.step == step) telemetry.on(e);
    };
    for (const std::int64_t step : steps) {
      write(d.telemetry.quant, step);
      write(d.telemetry.gemms, step);
      write(d.telemetry.weights, step);
      write(d.telemetry.layers, step);
    }
  }
  std::ofstream(run / "protocol.json") << canonical_text(d.protocol);
  std::ofstream(run / "verdict.json") << verdict_to_json(d.verdict);
  std::ofstream(run / "report_context.json") << context_to_json(d.context);
}

TEST(ReadRun, RebuildsTheSamePageFromTheFolder) {
  const ReportData d = fixture::comparison();
  const fs::path run = page_folder() / "run";
  write_run(run, d);
  EXPECT_EQ(report_html(read_run(run)), report_html(d));
  EXPECT_EQ(read_run_log(run / "candidate" / "metrics.jsonl").alarms, d.verdict.alarms);
}

TEST(ReadRun, AMissingOrBrokenFileIsNamed) {
  EXPECT_THROW(read_run("/nonexistent"), Error);
  const fs::path path = page_folder() / "broken.jsonl";
  std::ofstream(path) << "{\"type\":\"checkpoint\",\"step\":1}\nnot json\n";
  try {
    read_run_log(path);
    FAIL() << "a broken line was accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("broken.jsonl line 2"));
  }
}

TEST(ReadRun, AHalfWrittenLastLineIsLeftOut) {
  const fs::path path = page_folder() / "cut.jsonl";
  std::ofstream(path) << json_line(TrainEvent{.step = 1, .loss = 2}) << "\n{\"type\":\"tra";
  EXPECT_EQ(read_run_log(path).train.size(), 1u);
}

TEST(ReadRun, NonFiniteLossesSurviveTheLog) {
  const fs::path path = page_folder() / "nan.jsonl";
  std::ofstream(path) << json_line(TrainEvent{.step = 1, .loss = std::nan("")}) << "\n";
  EXPECT_TRUE(std::isnan(read_run_log(path).train[0].loss));
}

}  // namespace
}  // namespace nibble
