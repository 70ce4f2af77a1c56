// SPDX-License-Identifier: Apache-2.0
// A run with more measurements than the page has columns: what is thinned, and that no extreme is lost.
#include "report/long_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "report/flat_json.h"
#include "report/page_check.h"
#include "report/report.h"
#include "telemetry/jsonl_sink.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path folder(const std::string& name) {
  fs::path path = fixture::page_folder() / name;
  fs::remove_all(path);
  return path;
}

TEST(LongRun, IsThinnedKeepingTheEndsAndEverySpike) {
  const fs::path run = folder("long");
  write_long_run(run, {.steps = 2000, .every = 10, .layers = 4, .spike_step = 1630});
  const ReportData d = read_run(run);
  const RunTelemetry& t = d.telemetry;
  std::set<std::int64_t> steps;
  double lowest = 100;
  for (const QuantEvent& e : t.quant) {
    steps.insert(e.step);
    lowest = std::min(lowest, e.sqnr_db);
  }
  EXPECT_EQ(steps.size(), kTelemetryColumns);
  EXPECT_EQ(*steps.begin(), 10) << "the first step stays alone";
  EXPECT_EQ(*steps.rbegin(), 2000);
  EXPECT_EQ(lowest, 1) << "the spike of one step in 200 is kept";
  EXPECT_EQ(t.quant.size(), kTelemetryColumns * 4 * 6);
  EXPECT_EQ(t.gemms.size(), kTelemetryColumns * 4 * 3);
  const std::string html = report_html(d);
  EXPECT_EQ(fixture::unbalanced_tag(html), "");
  EXPECT_LT(html.size(), 600'000u);
  EXPECT_NE(html.find("SQNR 1.0 dB at step 16"), std::string::npos);
}

TEST(ReadTelemetry, AShortRunIsReadAsItWasWritten) {
  const fs::path path = fixture::page_folder() / "short.jsonl";
  fs::remove(path);
  QuantEvent e{.step = 3, .where = {"a \"b\"", 1, "fprop", "x"}, .format = "mxfp4", .amax = 2.5};
  e.sqnr_db = std::numeric_limits<double>::infinity();
  e.codes[15] = 7;
  {
    TelemetryJsonl log(path);
    log.on(HeaderEvent{});
    log.on(e);
    log.on(LayerEvent{3, "a", 1, 2, std::nan("")});
  }
  std::ofstream(path, std::ios::app) << R"({"type":"tensor","step":4,"lay)";
  const RunTelemetry t = read_telemetry(path);
  ASSERT_EQ(t.quant.size(), 1u);
  EXPECT_EQ(json_line(t.quant[0]), json_line(e));
  ASSERT_EQ(t.layers.size(), 1u);
  EXPECT_TRUE(std::isnan(t.layers[0].attention_logit_max));
}

TEST(ReadTelemetry, ALogOfBeforeHasWhatItHad) {
  const fs::path path = fixture::page_folder() / "old.jsonl";
  std::ofstream(path)
      << R"({"type":"tensor","step":1,"layer":"a","block":0,"gemm":"fprop","operand":"x",)"
      << R"("format":"nvfp4.te","amax":3,"sqnr_db":20,"scale_log2":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]})"
      << "\n";
  const RunTelemetry t = read_telemetry(path);
  ASSERT_EQ(t.quant.size(), 1u);
  EXPECT_EQ(t.quant[0].amax, 3);
  EXPECT_EQ(t.quant[0].scale_log2[15], 15);
  EXPECT_TRUE(std::isnan(t.quant[0].cosine));
}

TEST(ReadTelemetry, ABrokenLineIsNamed) {
  for (const char* line : {"{", "{}", "not json", R"({"type":"tensor"})", R"({"type":"tensor","step":1.5})",
                           R"({"type":"gemm","step":1,"layer":"a","block":0,"gemm":"f","output_error":"x"})",
                           R"({"type")", R"({"type":)", R"({"type":"a)", R"({"type":[1})"}) {
    const fs::path path = fixture::page_folder() / "bad.jsonl";
    std::ofstream(path) << line << "\n";
    try {
      read_telemetry(path);
      ADD_FAILURE() << line << " was accepted";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("bad.jsonl line 1")) << line;
    }
  }
}

}  // namespace
}  // namespace nibble
