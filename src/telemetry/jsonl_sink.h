// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "telemetry/events.h"
#include "telemetry/statistics.h"

namespace nibble {

inline constexpr int kLogSchema = 1;

/// One line of the log for an event: {"type":"train","step":...}. Types: header, train, val, task, tensor,
/// gemm, weight, layer, alarm, checkpoint, switch. Of an operand the selected statistics are written. A
/// task's line has a key a metric and another for its standard error:
/// {"type":"task","step":300,"tokens":614400,"task":"wn_isa","n":500,"acc":0.26,"acc_stderr":0.0196,...}
std::string json_line(const HeaderEvent& e);
std::string json_line(const TrainEvent& e);
std::string json_line(const EvalEvent& e);
std::string json_line(const TaskEvent& e);
std::string json_line(const QuantEvent& e, const TelemetrySelection& selection = {});
std::string json_line(const GemmEvent& e);
std::string json_line(const WeightEvent& e);
std::string json_line(const LayerEvent& e);
std::string json_line(const AlarmEvent& e);
std::string json_line(const CheckpointEvent& e);
std::string json_line(const SwitchEvent& e);

/// A file of lines that survives a crash and a resume.
///
/// Each line is handed to the system as a whole; sync() makes them durable. Opening with `resume_step`
/// drops every line after that step, and a half-written last line, so a resumed run continues its log
/// as if nothing had happened. Without it the file starts empty.
/// Throws Error when the file cannot be opened, written or made durable (a full disk).
class LineFile {
 public:
  LineFile(const std::filesystem::path& path, std::optional<std::int64_t> resume_step);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  bool empty() const { return bytes_ == 0; }
  void write(const std::string& line);
  void sync();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;
};

/// metrics.jsonl: header, train, val, task, alarm, checkpoint and switch lines.
class MetricsJsonl final : public Sink {
 public:
  explicit MetricsJsonl(const std::filesystem::path& path, std::optional<std::int64_t> resume_step = {})
      : file_(path, resume_step) {}
  void on(const HeaderEvent& e) override {
    if (file_.empty()) file_.write(json_line(e));
  }
  void on(const TrainEvent& e) override { file_.write(json_line(e)); }
  void on(const EvalEvent& e) override { file_.write(json_line(e)); }
  void on(const TaskEvent& e) override { file_.write(json_line(e)); }
  void on(const AlarmEvent& e) override { file_.write(json_line(e)); }
  void on(const CheckpointEvent& e) override { file_.write(json_line(e)); }
  void on(const SwitchEvent& e) override { file_.write(json_line(e)); }
  void sync() override { file_.sync(); }

 private:
  LineFile file_;
};

/// telemetry.jsonl: the header; of each measured step a tensor line a layer x GEMM x operand, a gemm line a
/// layer x GEMM, a weight line a linear and a layer line a sublayer, as far as they are selected.
class TelemetryJsonl final : public Sink {
 public:
  explicit TelemetryJsonl(const std::filesystem::path& path, std::optional<std::int64_t> resume_step = {},
                          TelemetrySelection selection = {})
      : file_(path, resume_step), selection_(std::move(selection)) {}
  void on(const HeaderEvent& e) override {
    if (file_.empty()) file_.write(json_line(e));
  }
  void on(const QuantEvent& e) override { file_.write(json_line(e, selection_)); }
  void on(const GemmEvent& e) override { file_.write(json_line(e)); }
  void on(const WeightEvent& e) override { file_.write(json_line(e)); }
  void on(const LayerEvent& e) override { file_.write(json_line(e)); }
  void sync() override { file_.sync(); }

 private:
  LineFile file_;
  TelemetrySelection selection_;
};

}  // namespace nibble
