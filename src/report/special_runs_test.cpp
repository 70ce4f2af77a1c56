// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "report/fixture.h"
#include "report/page_check.h"
#include "report/report.h"
#include "report/run_folder.h"
#include "telemetry/jsonl_sink.h"

namespace nibble {
namespace {

using fixture::page_folder;
using fixture::unbalanced_tag;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

TEST(Report, ABrokenCandidateIsAFailureWithItsCause) {
  ReportData d = fixture::comparison({.gap = 0.06, .abort_at = 120, .broken = true});
  for (const bool has_gap : {true, false}) {
    const std::string html = report_html(d);
    EXPECT_THAT(html, HasSubstr("class='verdict fail'"));
    EXPECT_THAT(html, HasSubstr("blocks.5.down dgrad operand dy"));
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, Not(HasSubstr("measured by the A/A arm"))) << "none was run";
    EXPECT_THAT(summary_text(d.verdict), Not(HasSubstr("nan")));
    EXPECT_EQ(unbalanced_tag(html), "");
    if (has_gap) write_report(page_folder() / "broken.html", d);
    d.verdict.relative_gap = std::nan("");
  }
}

TEST(Report, SeveralPairsAreTheirOwnNoise) {
  const ReportData d = fixture::comparison({.pairs = 4});
  const std::string html = report_html(d);
  EXPECT_THAT(html, HasSubstr("spread of 4 pairs"));
  for (const char* wrong : {"noise is assumed", "measured by the A/A arm", "the A/A gap</h2>"}) {
    EXPECT_THAT(html, Not(HasSubstr(wrong)));
  }
  EXPECT_EQ(unbalanced_tag(html), "");
  write_report(page_folder() / "pairs.html", d);
}

TEST(Report, AlarmsNameTheirArm) {
  ReportData d = fixture::comparison();
  d.verdict.alarms[0].arm = "candidate", d.verdict.alarms[0].severity = Severity::Fault;
  EXPECT_THAT(report_html(d), HasSubstr("candidate · step 210"));
  EXPECT_THAT(summary_text(d.verdict), HasSubstr("FAULT candidate, step 210"));
}

TEST(Report, RepeatedAlarmsOfOneSubjectAreOneLine) {
  ReportData d = fixture::comparison();
  const AlarmEvent alarm = d.verdict.alarms[0];
  d.verdict.alarms.clear();
  for (const char* arm : {"candidate", "candidate_aa"}) {
    for (const int step : {210, 240}) {
      d.verdict.alarms.push_back(alarm);
      d.verdict.alarms.back().arm = arm, d.verdict.alarms.back().step = step;
    }
  }
  const std::string html = report_html(d);
  EXPECT_THAT(html, HasSubstr("candidate, candidate_aa · steps 210 to 240, 4 times · blocks.5.down"));
  EXPECT_THAT(html, Not(HasSubstr("more in metrics.jsonl")));
  EXPECT_THAT(summary_text(d.verdict), HasSubstr("1 warning in the report"));
}

TEST(Summary, GivesTheVerdictFirstAndOneSentenceOfEachCaveat) {
  const ReportData d = fixture::comparison();
  const std::string text = summary_text(d.verdict);
  EXPECT_EQ(text.find("VERDICT"), text.find_first_not_of('\n'));
  ASSERT_FALSE(d.verdict.caveats.empty());
  for (const auto& caveat : d.verdict.caveats) {
    EXPECT_THAT(text, Not(HasSubstr(caveat))) << "this caveat has more than one sentence";
  }
  EXPECT_THAT(text, Not(HasSubstr("no time to appear")));
  EXPECT_THAT(report_html(d), HasSubstr("no time to appear")) << "the page keeps the whole text";
}

TEST(RequireComparison, SaysThatASingleTrainingRunIsNone) {
  const fs::path run = page_folder() / "single";
  fs::remove_all(run);
  fs::create_directories(run);
  std::ofstream(run / "metrics.jsonl") << json_line(HeaderEvent{.run = "single"}) << "\n";
  try {
    require_comparison(run);
    FAIL() << "a single run was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_THAT(e.what(), HasSubstr("is a single training run"));
    EXPECT_THAT(e.what(), HasSubstr("report needs a comparison"));
    EXPECT_THAT(e.what(), HasSubstr("nibble validate"));
  }
}

TEST(RequireComparison, TellsAnUnfinishedComparisonFromNone) {
  const fs::path run = page_folder() / "unfinished";
  fs::remove_all(run);
  fs::create_directories(run);
  std::ofstream(run / "protocol.json") << "{}";
  std::ofstream(run / "verdict.json") << "{}";
  EXPECT_NO_THROW(require_comparison(run));
  fs::remove(run / "verdict.json");
  try {
    require_comparison(run);
    FAIL() << "a run without a verdict was accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--resume"));
  }
  EXPECT_THROW(require_comparison("/nonexistent"), Error);
}

}  // namespace
}  // namespace nibble
