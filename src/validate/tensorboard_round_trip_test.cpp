// SPDX-License-Identifier: Apache-2.0
// What the event-file writer writes, the reader of `nibble compare` reads, and the bytes are those of the
// format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "telemetry/tensorboard_sink.h"
#include "validate/curve_reader.h"
#include "validate/tiny_run.h"

namespace nibble {
namespace {

TEST(TensorBoardWriter, WritesTheBytesOfTheFormat) {
  EventMessage m(1.0, 300);
  m.scalar("a", 0.5);
  // wall_time (1, fixed64) 1.0; step (2, varint) 300; summary (5) of value (1) of tag (1) "a", simple_value
  // (2) 0.5.
  const std::string expected("\x09\0\0\0\0\0\0\xF0\x3F\x10\xAC\x02\x2A\x0A\x0A\x08\x0A\x01\x61\x15\0\0\0\x3F",
                             24);
  EXPECT_EQ(m.bytes(), expected);
  const std::string record = event_record(m.bytes());
  ASSERT_EQ(record.size(), 8 + 4 + 24 + 4u);
  EXPECT_EQ(record.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
}

TEST(TensorBoardWriter, RefusesAHistogramWithoutAsManyLimits) {
  EventMessage m(1.0, 1);
  EXPECT_THROW(m.histogram("h", 0, {1, 2}, {1}), Error);
}

TEST(TensorBoardWriter, RoundTripsThroughTheReader) {
  const TinyPlace place;
  {
    TensorBoardSink sink(place.path() / "tb", {});
    sink.on(TrainEvent{.step = 1, .loss = 3.25, .lr = 0.5, .grad_norm = 2});
    sink.on(EvalEvent{.step = 200, .loss = 2.75});
    QuantEvent q{.step = 200, .where = {"blocks.0.mlp.up", 0, "fprop", "x"}};
    q.scale_log2[8] = 5;
    q.sqnr_db = 20.5;
    sink.on(q);
    sink.on(GemmEvent{.step = 200, .where = {"blocks.0.mlp.up", 0, "wgrad", ""}, .output_error = 0.25});
    const double none = std::numeric_limits<double>::quiet_NaN();
    sink.on(WeightEvent{.step = 200, .layer = "blocks.0.mlp.up", .update_ratio = 0.5, .oscillation = none});
    sink.on(LayerEvent{200, "blocks.0.mlp", 1.5, 2, none});
    sink.sync();
  }
  std::filesystem::path file;
  for (const auto& e : std::filesystem::directory_iterator(place.path() / "tb")) file = e.path();
  std::vector<std::string> notes;
  const auto events = read_event_file(read_file(file), "file", notes);
  EXPECT_TRUE(notes.empty());
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"train/loss", 1, 3.25}));
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"val/loss", 200, 2.75}));
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"blocks.0.mlp.up/fprop/x/sqnr_db", 200, 20.5}));
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"blocks.0.mlp.up/wgrad/output_error", 200, 0.25}));
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"blocks.0.mlp.up/weight/update_ratio", 200, 0.5}));
  EXPECT_THAT(events, ::testing::Contains(ScalarEvent{"blocks.0.mlp/residual_rms", 200, 1.5}));
  for (const ScalarEvent& e : events) EXPECT_FALSE(std::isnan(e.value)) << e.tag;
}

TEST(TensorBoardWriter, ATrainingRunsEventsHaveTheLossesOfItsLog) {
  const TinyPlace place;
  place.train(place.config({"metrics.tensorboard=true", "training.steps=8", "telemetry.every=4"}));
  const Curve curve = read_curve((place.run() / "tensorboard").string());
  EXPECT_EQ(curve.metric, "val/loss");
  const RunLog log = read_run_log(place.run() / "metrics.jsonl");
  ASSERT_EQ(curve.points.size(), log.evaluations.size());
  for (std::size_t i = 0; i < log.evaluations.size(); ++i) {
    EXPECT_EQ(curve.points[i].step, log.evaluations[i].step);
    EXPECT_EQ(curve.points[i].loss, static_cast<double>(static_cast<float>(log.evaluations[i].loss)));
  }
}

}  // namespace
}  // namespace nibble
