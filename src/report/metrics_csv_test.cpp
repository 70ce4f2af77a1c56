// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_csv.h"

#include <gtest/gtest.h>

#include "io/file.h"
#include "io/test_dir.h"
#include "telemetry/jsonl_sink.h"
#include "validate/curve_reader.h"

namespace nibble {
namespace {

TEST(MetricsCsv, IsReadBackByCompareWithTheSameBits) {
  const TestDir dir;
  for (const char* arm : {"candidate", "baseline"}) {
    std::filesystem::create_directories(dir.path() / "run" / arm);
    MetricsJsonl log(dir.path() / "run" / arm / "metrics.jsonl");
    log.on(HeaderEvent{.run = "run", .arm = arm});
    for (int s = 1; s <= 4; ++s) {
      log.on(TrainEvent{.step = s, .tokens = 8 * s, .loss = 1.0 / (s + 2), .lr = 0.1, .grad_norm = 1});
      if (s % 2 == 0) log.on(EvalEvent{.step = s, .tokens = 8 * s, .loss = 1.0 / (s + 3)});
    }
  }
  write_metrics_csv(dir.path() / "run", dir.path() / "all.csv");
  const std::string csv = read_file(dir.path() / "all.csv");
  EXPECT_LT(csv.find("baseline,1,"), csv.find("candidate,1,"));
  const std::string base = (dir.path() / "all.csv").string();
  const Curve train = read_curve(base + "#arm=candidate,loss=loss,tokens=tokens");
  ASSERT_EQ(train.points.size(), 4u);
  EXPECT_EQ(train.points[2].loss, 1.0 / 5);
  EXPECT_EQ(train.points[2].tokens, 24);
  const Curve val = read_curve(base + "#arm=baseline,loss=val_loss");
  ASSERT_EQ(val.points.size(), 2u);
  EXPECT_EQ(val.points[1].step, 4);
  EXPECT_EQ(val.points[1].loss, 1.0 / 7);
}

TEST(MetricsCsv, SaysWhenThereIsNoLog) {
  const TestDir dir;
  EXPECT_THROW(write_metrics_csv(dir.path(), dir.path() / "x.csv"), Error);
  EXPECT_THROW(write_metrics_csv(dir.path() / "missing", dir.path() / "x.csv"), Error);
}

}  // namespace
}  // namespace nibble
