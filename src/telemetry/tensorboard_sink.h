// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/events.h"

/// TensorBoard event files, written by hand: TFRecord framing around protocol buffers of which scalars,
/// histograms and a session's start are all that is needed. Source: [TFRECORD].
namespace nibble {

/// A record: u64 length, masked CRC-32C of it, the data, masked CRC-32C of them; little endian.
std::string event_record(std::string_view data);

/// One event as a protocol buffer.
class EventMessage {
 public:
  EventMessage(double wall_time, std::int64_t step);
  void file_version();                              ///< "brain.Event:2", what a file opens with
  void session_start();                             ///< readers drop what they have from this step on
  void scalar(std::string_view tag, double value);  ///< stored as a float: metrics.jsonl keeps all digits
  /// `limits` are the upper edges of the buckets, ascending; `counts` as many. Edges below the first limit
  /// are unknown to the format, so `low` stands for them.
  void histogram(std::string_view tag, double low, const std::vector<double>& limits,
                 const std::vector<std::int64_t>& counts);
  std::string bytes() const;

 private:
  void value(std::string_view tag, const std::string& rest);
  std::string head_, summary_;
};

/// A run's scalars and histograms under DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.N: train/loss,
/// train/grad_norm, train/lr, train/tokens_per_s, val/loss, and for each quantised operand that is measured
/// LAYER/GEMM/OPERAND/{sqnr_db,flushed,amax} and the histogram of log2 of its block scales;
/// LAYER/GEMM/output_error, LAYER/weight/{update_ratio,gradient_zeros,oscillation},
/// SUBLAYER/{residual_rms,attention_logit_max}. A number that was not measured leaves no point. A resumed run
/// opens a further file whose first event tells readers to drop the steps that are written again. Throws
/// Error when the file cannot be written.
class TensorBoardSink final : public Sink {
 public:
  TensorBoardSink(const std::filesystem::path& directory, std::optional<std::int64_t> resume_step);
  ~TensorBoardSink() override;
  TensorBoardSink(const TensorBoardSink&) = delete;
  TensorBoardSink& operator=(const TensorBoardSink&) = delete;

  void on(const TrainEvent& e) override;
  void on(const EvalEvent& e) override;
  void on(const QuantEvent& e) override;
  void on(const GemmEvent& e) override;
  void on(const WeightEvent& e) override;
  void on(const LayerEvent& e) override;
  void sync() override;

 private:
  void write(const EventMessage& m);
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace nibble
