// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "telemetry/events.h"
#include "telemetry/z_score.h"

namespace nibble {

struct ConsoleOptions {
  std::FILE* out = stdout;
  bool live = false;        ///< a terminal: colours allowed
  bool colour = false;      ///< see console_options_for
  std::int64_t every = 10;  ///< steps between lines; the first and the last step always print
};

/// Colours only on a terminal and without NO_COLOR in the environment (https://no-color.org).
ConsoleOptions console_options_for(std::FILE* out, std::int64_t every);

/// Losses of another run by step, to print the paired gap beside one's own.
struct BaselineLosses {
  std::map<std::int64_t, double> train;
  std::map<std::int64_t, double> val;
};

/// One line a logged step:
///   candidate step 120/300 40% | loss 4.31725 (+0.4σ) | gap +0.12% | norm 0.84 (-0.2σ) | lr 3.0e-04 |
///   12.4k tok/s | uflow 2.1% | eta 2m14s
/// `gap` is (loss - baseline) / baseline on the same step and batch, present with a baseline only; `uflow`
/// the worst operand's flushed share of the last telemetry step. Validation prints its own line. An alarm is
/// printed once for a subject (alarm_subject); the log has them all.
class ConsoleSink final : public Sink {
 public:
  explicit ConsoleSink(ConsoleOptions options) : options_(options) {}
  void attach_baseline(BaselineLosses baseline) { baseline_ = std::move(baseline); }

  void on(const HeaderEvent& e) override;
  void on(const TrainEvent& e) override;
  void on(const EvalEvent& e) override;
  void on(const TaskEvent& e) override;
  void on(const QuantEvent& e) override;
  void on(const AlarmEvent& e) override;
  void on(const CheckpointEvent& e) override;
  void on(const SwitchEvent& e) override;

 private:
  std::string train_line(const TrainEvent& e, std::optional<double> z_loss,
                         std::optional<double> z_norm) const;
  void print(const std::string& line, const char* colour = nullptr);

  ConsoleOptions options_;
  HeaderEvent header_;
  BaselineLosses baseline_;
  ZScore loss_z_, norm_z_;
  double smooth_ms_ = 0;
  std::int64_t quant_step_ = -1;
  std::set<std::string> alarmed_;
  double worst_flushed_ = 0;
};

/// 45 -> "45s", 134 -> "2m14s", 8040 -> "2h14m".
std::string short_duration(double seconds);
/// 950 -> "950", 12400 -> "12.4k", 520000 -> "520k", 1.2e6 -> "1.20M".
std::string short_count(double value);

}  // namespace nibble
