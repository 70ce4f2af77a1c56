// SPDX-License-Identifier: Apache-2.0
#include "validate/curve_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/file.h"
#include "io/test_dir.h"

namespace nibble {
namespace {

std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}

std::string field(int number, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

template <class T>
std::string raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

/// One record: length, its checksum, event, its checksum.
std::string record(const std::string& event) {
  const std::string length = little(event.size(), 8);
  return length + little(masked_crc32c(length), 4) + event + little(masked_crc32c(event), 4);
}

std::string scalar_event(std::int64_t step, const std::string& tag, float value) {
  const std::string v = field(1, tag) + varint(2 << 3 | 5) + raw(value);
  return record(varint(1 << 3 | 1) + raw(1.7e9) + varint(2 << 3) + varint(step) + field(5, field(1, v)));
}

/// As TensorFlow 2 writes a scalar: a tensor of one float in tensor_content.
std::string tensor_event(std::int64_t step, const std::string& tag, float value) {
  const std::string tensor = varint(1 << 3) + varint(1) + field(4, raw(value));
  return record(field(5, field(1, field(1, tag) + field(8, tensor))) + varint(2 << 3) + varint(step));
}

class CurveReader : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const auto path = dir_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path, text);
    return path.string();
  }
  static std::string message(const std::string& source) {
    try {
      read_curve(source);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  TestDir dir_;
};

TEST(Crc32c, GivesThePublishedCheckValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST_F(CurveReader, EventFilesGiveTheOnlyLoss) {
  const auto path =
      write("events.out.tfevents.1",
            scalar_event(1, "lr", 0.1F) + scalar_event(1, "loss", 4.5F) + tensor_event(2, "loss", 4.25F));
  const Curve c = read_curve(path);
  EXPECT_EQ(c.format, "TensorBoard events");
  EXPECT_EQ(c.metric, "loss");
  ASSERT_EQ(c.points.size(), 2u);
  EXPECT_EQ(c.points[0].loss, 4.5);
  EXPECT_EQ(c.points[1].step, 2);
  EXPECT_EQ(c.points[1].loss, 4.25);
}

TEST_F(CurveReader, AFileThatTensorBoardWroteIsReadInAllItsForms) {
  const std::string file = NIBBLE_SOURCE_DIR "/tests/golden/tensorboard/events.out.tfevents.0";
  const struct {
    const char* tag;  // simple_value, tensor_content, float_val
    double start;
  } cases[] = {{"train/loss", 5}, {"val/loss", 5.25}, {"val/loss_f", 6}};
  for (const auto& each : cases) {
    const Curve c = read_curve(file + "#tag=" + each.tag);
    ASSERT_EQ(c.points.size(), 5u) << each.tag;
    for (int i = 1; i <= 5; ++i) {
      EXPECT_EQ(c.points[i - 1].step, 10 * i);
      EXPECT_EQ(c.points[i - 1].loss, each.start - 0.5 * i) << each.tag;
    }
  }
}

TEST_F(CurveReader, FilesOfOneFolderFollowEachOtherAndALaterStepCounts) {
  write("tb/events.out.tfevents.1", scalar_event(1, "loss", 5) + scalar_event(2, "loss", 4));
  write("tb/events.out.tfevents.2", scalar_event(2, "loss", 3) + scalar_event(3, "loss", 2));
  const Curve c = read_curve((dir_.path() / "tb").string());
  ASSERT_EQ(c.points.size(), 3u);
  EXPECT_EQ(c.points[1].loss, 3);
  ASSERT_EQ(c.notes.size(), 1u);
}

TEST_F(CurveReader, SeveralLossesAreListedAndOneIsChosenByTag) {
  const auto path =
      write("events.out.tfevents.1",
            scalar_event(1, "lm loss", 5) + scalar_event(1, "mtp loss", 6) + scalar_event(1, "lr", 1));
  const std::string text = message(path);
  EXPECT_NE(text.find("lm loss, lr, mtp loss"), std::string::npos) << text;
  EXPECT_EQ(read_curve(path + "#tag=mtp loss").points[0].loss, 6);
}

TEST_F(CurveReader, AFlippedBitInAnEventFileIsFoundWithItsPlace) {
  const std::string first = scalar_event(1, "loss", 5);
  std::string bytes = first + scalar_event(2, "loss", 4);
  bytes[first.size() + 20] ^= 1;
  const std::string text = message(write("events.out.tfevents.1", bytes));
  EXPECT_NE(text.find(fmt::format("at byte {}", first.size())), std::string::npos) << text;
}

TEST_F(CurveReader, ARecordThatIsBeingWrittenEndsTheCurveAndIsSaid) {
  std::string bytes = scalar_event(1, "loss", 5) + scalar_event(2, "loss", 4);
  bytes.resize(bytes.size() - 7);
  const Curve c = read_curve(write("events.out.tfevents.1", bytes));
  EXPECT_EQ(c.points.size(), 1u);
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_NE(c.notes[0].find("middle of a record"), std::string::npos);
}

TEST_F(CurveReader, MlperfLogsGiveTheirEvaluationsBySamples) {
  const std::string text =
      "some line\n"
      ":::MLLOG {\"key\": \"seed\", \"value\": 7, \"metadata\": {}}\n"
      ":::MLLOG {\"key\": \"max_sequence_length\", \"value\": 8192, \"metadata\": {}}\n"
      "0: :::MLLOG {\"key\": \"train_loss\", \"value\": 6.5, \"metadata\": {\"samples_count\": 16}}\n"
      ":::MLLOG {\"key\": \"eval_accuracy\", \"value\": 5.25, \"metadata\": {\"samples_count\": 12288}}\n"
      ":::MLLOG {\"key\": \"eval_accuracy\", \"value\": 4.5, \"metadata\": {\"epoch_num\": 24576}}\n";
  const auto path = write("result_0.txt", text);
  const Curve c = read_curve(path);
  EXPECT_EQ(c.format, "MLPerf log");
  EXPECT_EQ(c.step_name, "samples");
  ASSERT_EQ(c.points.size(), 2u);
  EXPECT_EQ(c.points[1].step, 24576);
  EXPECT_EQ(c.points[1].tokens, 24576 * 8192);
  EXPECT_EQ(c.identity.at("seed"), "7");
  EXPECT_EQ(read_curve(path + "#metric=train").points[0].loss, 6.5);
}

TEST_F(CurveReader, ATableOfSeveralRunsMustBeToldWhich) {
  const auto path = write("t.csv",
                          "# comment\nrecipe,samples,tokens,n_runs,mean_val_loss,sd_val_loss\n"
                          "fp8,1,10,4,3.0,0.02\nnvfp4,1,10,4,3.1,0.04\nnvfp4,2,20,4,2.9,0.02\n");
  const std::string text = message(path);
  EXPECT_NE(text.find("recipe (fp8 nvfp4)"), std::string::npos) << text;
  const Curve c = read_curve(path + "#recipe=nvfp4");
  ASSERT_EQ(c.points.size(), 2u);
  EXPECT_EQ(c.points[0].loss, 3.1);
  EXPECT_EQ(c.points[1].tokens, 20);
  EXPECT_EQ(c.points[0].standard_error, 0.02);
  EXPECT_EQ(c.runs, 4);
  EXPECT_NE(message(path + "#recipe=bf16").find("there are fp8, nvfp4"), std::string::npos);
}

TEST_F(CurveReader, QuotedCsvColumnsAreNamedByTheUser) {
  const auto path = write("w.csv", "\"Step\",\"a, b - val/loss\"\n\"10\",\"3.5\"\n\"20\",\"\"\n");
  EXPECT_NE(message(path).find("no column is called a loss"), std::string::npos);
  const auto plain = write("x.csv", "\"Step\",\"mine\"\n\"10\",\"3.5\"\n\"20\",\"\"\n");
  const Curve c = read_curve(plain + "#loss=mine");
  ASSERT_EQ(c.points.size(), 1u);
  EXPECT_EQ(c.notes.size(), 1u);
}

struct TextCase {
  const char *name, *line;
  std::int64_t step;
  double loss;
  bool validation;
};

class TextLog : public ::testing::TestWithParam<TextCase> {};

TEST_P(TextLog, LinesOfKnownTrainersAreRead) {
  const TextCase& t = GetParam();
  const TestDir dir;
  write_file(dir.path() / "log.txt", std::string("starting up\n") + t.line + "\n");
  const Curve c = read_curve((dir.path() / "log.txt").string());
  ASSERT_EQ(c.points.size(), 1u);
  EXPECT_EQ(c.points[0].step, t.step);
  if (std::isnan(t.loss))
    EXPECT_TRUE(std::isnan(c.points[0].loss));
  else
    EXPECT_EQ(c.points[0].loss, t.loss);
  EXPECT_EQ(c.validation, t.validation);
}

INSTANTIATE_TEST_SUITE_P(
    Trainers, TextLog,
    ::testing::Values(
        TextCase{
            "megatron",
            " [2025-01-01 10:00:00] iteration      100/    1000 | consumed samples:        25600 | elapsed "
            "time per iteration (ms): 512.3 | learning rate: 1.5E-04 | lm loss: 5.25E+00 | loss scale: 1.0 "
            "| grad norm: 0.512 |",
            100, 5.25, false},
        TextCase{"megatron_validation",
                 " validation loss at iteration 200 on validation set | lm loss value: 4.5E+00 | lm loss "
                 "PPL: 90.0",
                 200, 4.5, true},
        TextCase{"torchtitan",
                 "\x1b[32mstep: 10  \x1b[33mloss:  7.8125  \x1b[34mgrad_norm: 3.1  memory: 10.5GiB(12%)", 10,
                 7.8125, false},
        TextCase{"nanogpt_step", "step 500: train loss 3.5, val loss 3.625", 500, 3.625, true},
        TextCase{"nanogpt_iter", "iter 7: loss 9.5, time 21.0ms, mfu 0.1%", 7, 9.5, false},
        TextCase{"json", "{\"step\": 12, \"lr\": 0.001, \"loss\": 2.5}", 12, 2.5, false},
        TextCase{"broken", "step 12 loss nan", 12, std::nan(""), false},
        TextCase{"bare", "1200 3.4567", 1200, 3.4567, false}),
    [](const auto& info) { return info.param.name; });

TEST_F(CurveReader, TokensOfAStepCanBeGivenButNotContradicted) {
  const auto path = write("log.txt", "step 1 loss 3\nstep 2 loss 2\n");
  EXPECT_EQ(read_curve(path + "#tokens_per_step=4096").points[1].tokens, 8192);
  const auto csv = write("a.csv", "step,tokens,loss\n1,10,3\n");
  EXPECT_NE(message(csv + "#tokens_per_step=5").find("says its tokens itself"), std::string::npos);
}

TEST_F(CurveReader, WhatCannotBeReadIsSaidWithARemedy) {
  EXPECT_NE(message((dir_.path() / "none").string()).find("does not exist"), std::string::npos);
  EXPECT_NE(message(write("a.txt", "hello\n")).find("step 100 loss 3.21"), std::string::npos);
  EXPECT_NE(message(write("b.txt", "step 1 loss 2\n") + "#tg=loss").find("has no option \"tg\""),
            std::string::npos);
  write("run/candidate/metrics.jsonl", "{}\n");
  const std::string text = message((dir_.path() / "run").string());
  EXPECT_NE(text.find("candidate"), std::string::npos) << text;
}

}  // namespace
}  // namespace nibble
