// SPDX-License-Identifier: Apache-2.0
#include "telemetry/console_sink.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "telemetry/alarms.h"

namespace nibble {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kBold = "\033[1m";
constexpr const char* kYellow = "\033[33m";
constexpr const char* kRed = "\033[31m";
constexpr const char* kReset = "\033[0m";

std::string sigma(std::optional<double> z) { return z ? fmt::format(" ({:+.1f}σ)", *z) : ""; }

std::optional<double> gap(const std::map<std::int64_t, double>& baseline, std::int64_t step, double loss) {
  const auto at = baseline.find(step);
  if (at == baseline.end() || at->second == 0) return {};
  return (loss - at->second) / at->second;
}

}  // namespace

ConsoleOptions console_options_for(std::FILE* out, std::int64_t every) {
  const bool live = ::isatty(::fileno(out)) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  return {out, live, live && (no_color == nullptr || *no_color == '\0'), every};
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto s = static_cast<std::int64_t>(std::max(0.0, std::round(seconds)));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 100 * 3600) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}d{:02}h", s / 86400, s % 86400 / 3600);
}

std::string short_count(double value) {
  if (value < 1e3) return fmt::format("{:.0f}", value);
  const auto three = [](double v, const char* unit) {
    return fmt::format("{:.{}f}{}", v, v < 10 ? 2 : v < 100 ? 1 : 0, unit);
  };
  if (value < 1e6) return three(value / 1e3, "k");
  if (value < 1e9) return three(value / 1e6, "M");
  return value < 1e12 ? three(value / 1e9, "B") : three(value / 1e12, "T");
}

void ConsoleSink::print(const std::string& line, const char* colour) {
  if (options_.colour && colour != nullptr) {
    fmt::print(options_.out, "{}{}{}\n", colour, line, kReset);
  } else {
    fmt::print(options_.out, "{}\n", line);
  }
  std::fflush(options_.out);
}

void ConsoleSink::on(const HeaderEvent& e) {
  header_ = e;
  print(fmt::format("{}{}: recipe {}{}, backend {}, {} parameters, {} steps x {} tokens, seed {}", e.run,
                    e.arm.empty() ? "" : " / " + e.arm, e.recipe, e.emulated ? " (emulated)" : "", e.backend,
                    short_count(static_cast<double>(e.parameters)), e.steps, e.tokens_per_step, e.seed),
        kBold);
}

std::string ConsoleSink::train_line(const TrainEvent& e, std::optional<double> z_loss,
                                    std::optional<double> z_norm) const {
  const double share = header_.steps > 0 ? 100.0 * static_cast<double>(e.step) / header_.steps : 0;
  std::string line = header_.arm.empty() ? "" : header_.arm + " ";
  line +=
      fmt::format("step {}/{} {:.0f}% | loss {:.5f}{}", e.step, header_.steps, share, e.loss, sigma(z_loss));
  if (const auto g = gap(baseline_.train, e.step, e.loss)) line += fmt::format(" | gap {:+.2f}%", 100 * *g);
  line += fmt::format(" | norm {:.2f}{} | lr {:.1e} | {} tok/s", e.grad_norm, sigma(z_norm), e.lr,
                      short_count(e.tokens_per_s));
  if (e.mfu) line += fmt::format(" | mfu {:.0f}%", 100 * *e.mfu);
  if (quant_step_ >= 0) line += fmt::format(" | uflow {:.1f}%", 100 * worst_flushed_);
  return line + " | eta " + short_duration(smooth_ms_ / 1e3 * static_cast<double>(header_.steps - e.step));
}

void ConsoleSink::on(const TrainEvent& e) {
  const auto z_loss = loss_z_.push(e.loss);
  const auto z_norm = norm_z_.push(e.grad_norm);
  smooth_ms_ = smooth_ms_ == 0 ? e.step_ms : 0.9 * smooth_ms_ + 0.1 * e.step_ms;
  const bool due =
      e.step == 1 || e.step == header_.steps || e.step % std::max<std::int64_t>(options_.every, 1) == 0;
  if (!due) return;
  const bool odd = (z_loss && *z_loss > 4) || (z_norm && *z_norm > 6) || !std::isfinite(e.loss);
  print(train_line(e, z_loss, z_norm), odd ? kYellow : nullptr);
}

void ConsoleSink::on(const EvalEvent& e) {
  std::string line = header_.arm.empty() ? "" : header_.arm + " ";
  line += fmt::format("eval step {}/{} | {} loss {:.5f}", e.step, header_.steps, e.set, e.loss);
  if (const auto g = gap(baseline_.val, e.step, e.loss)) line += fmt::format(" | gap {:+.2f}%", 100 * *g);
  print(line, kBold);
}

void ConsoleSink::on(const TaskEvent& e) {
  std::string line = header_.arm.empty() ? "" : header_.arm + " ";
  line += fmt::format("task step {}/{} | {} ({})", e.step, header_.steps, e.task, e.examples);
  for (const TaskEvent::Value& m : e.metrics)
    line += fmt::format(" | {} {:.4f} ±{:.4f}", m.name, m.value, m.standard_error);
  print(line);
}

void ConsoleSink::on(const QuantEvent& e) {
  if (e.step != quant_step_) worst_flushed_ = 0;
  quant_step_ = e.step;
  worst_flushed_ = std::max(worst_flushed_, e.flushed);
}

void ConsoleSink::on(const AlarmEvent& e) {
  if (!alarmed_.insert(std::string(name(e.severity)) + alarm_subject(e.rule, e.where)).second) return;
  print(fmt::format("{}: step {}: {}", name(e.severity), e.step, e.text), e.severity == Severity::Fault ? kRed
                                                                          : e.severity == Severity::Warning
                                                                              ? kYellow
                                                                              : kDim);
}

void ConsoleSink::on(const CheckpointEvent& e) {
  print(fmt::format("checkpoint step {}: {} ({:.1f} s)", e.step, e.path, e.seconds), kDim);
}

void ConsoleSink::on(const SwitchEvent& e) {
  print(fmt::format("switch step {}: {} from {} to {}", e.step, e.what, e.from, e.to), kBold);
}

}  // namespace nibble
