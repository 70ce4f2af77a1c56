// SPDX-License-Identifier: Apache-2.0
#include "telemetry/jsonl_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "telemetry/json_line.h"

namespace nibble {
namespace {

/// The step of a line written by this file, or nothing for the header.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view kKey = "\"step\":";
  const auto at = line.find(kKey);
  if (at == std::string_view::npos) return {};
  std::int64_t step = 0;
  const char* first = line.data() + at + kKey.size();
  if (std::from_chars(first, line.data() + line.size(), step).ec != std::errc{}) return {};
  return step;
}

/// How many leading bytes of the log belong to steps up to `step`: whole lines only.
std::int64_t bytes_up_to(const std::string& text, std::int64_t step) {
  std::size_t kept = 0;
  while (kept < text.size()) {
    const auto end = text.find('\n', kept);
    if (end == std::string::npos) break;
    const auto s = step_of(std::string_view(text).substr(kept, end - kept));
    if (s && *s > step) break;
    kept = end + 1;
  }
  return static_cast<std::int64_t>(kept);
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void add_where(JsonLine& line, const OperandName& w) {
  line.add("layer", w.layer).add("block", w.block).add("gemm", w.gemm).add("operand", w.operand);
}

}  // namespace

LineFile::LineFile(const std::filesystem::path& path, std::optional<std::int64_t> resume_step) : path_(path) {
  if (resume_step && std::filesystem::is_regular_file(path))
    bytes_ = bytes_up_to(read_all(path), *resume_step);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  check(fd_ >= 0, "cannot open {} for writing: {}", path.string(), std::strerror(errno));
  // A pipe or a device has nothing to cut.
  const bool regular = std::filesystem::is_regular_file(path);
  const bool placed = !regular || (::ftruncate(fd_, bytes_) == 0 && ::lseek(fd_, bytes_, SEEK_SET) == bytes_);
  if (!placed) {
    const int error = errno;
    ::close(fd_);
    fail("cannot cut {} to {} bytes: {}", path.string(), bytes_, std::strerror(error));
  }
}

LineFile::~LineFile() { ::close(fd_); }

void LineFile::write(const std::string& line) {
  const std::string text = line + '\n';
  std::size_t done = 0;
  while (done < text.size()) {
    const auto n = ::write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "cannot write to {}: {}; free some space and resume from the last checkpoint",
          path_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
  bytes_ += static_cast<std::int64_t>(text.size());
}

void LineFile::sync() {
  check(::fsync(fd_) == 0, "cannot make {} durable: {}", path_.string(), std::strerror(errno));
}

std::string json_line(const HeaderEvent& e) {
  JsonLine line("header");
  line.add("schema", kLogSchema).add("run", e.run).add("arm", e.arm).add("recipe", e.recipe);
  line.add("backend", e.backend).add("version", e.version).add("protocol", e.protocol);
  line.add("config", e.config).add("data", e.data).add("init", e.init);
  // Seeds use all 64 bits, so they are text for the readers that keep numbers as doubles.
  line.add("seed", fmt::format("{}", e.seed)).add("sr_seed", fmt::format("{}", e.sr_seed));
  line.add("steps", e.steps).add("tokens_per_step", e.tokens_per_step).add("parameters", e.parameters);
  line.add("warmup_steps", e.warmup_steps).add("decay_start", e.decay_start).add("emulated", e.emulated);
  line.add("accumulate", e.accumulate).add("products", e.products);
  return line.str();
}

std::string json_line(const TrainEvent& e) {
  JsonLine line("train");
  line.add("step", e.step).add("tokens", e.tokens).add("loss", e.loss).add("lr", e.lr);
  line.add("grad_norm", e.grad_norm).add("tokens_per_s", e.tokens_per_s).add("step_ms", e.step_ms);
  return line.add("mfu", e.mfu).add_hash("batch_hash", e.batch_hash).str();
}

std::string json_line(const EvalEvent& e) {
  JsonLine line("val");
  line.add("step", e.step).add("tokens", e.tokens).add("loss", e.loss).add("eval_tokens", e.eval_tokens);
  return line.add("set", e.set).str();
}

std::string json_line(const TaskEvent& e) {
  JsonLine line("task");
  line.add("step", e.step).add("tokens", e.tokens).add("task", e.task).add("n", e.examples);
  for (const TaskEvent::Value& m : e.metrics)
    line.add(m.name, m.value).add(m.name + "_stderr", m.standard_error);
  return line.str();
}

std::string json_line(const QuantEvent& e, const TelemetrySelection& selection) {
  JsonLine line("tensor");
  line.add("step", e.step);
  add_where(line, e.where);
  line.add("format", e.format);
  for (const Statistic& s : operand_statistics())
    if (s.always || selection.has_statistic(s.name)) line.add(s.name, e.*s.value);
  if (selection.has_statistic(kScaleHistogram)) line.add_list(kScaleHistogram, e.scale_log2);
  if (selection.has_statistic(kCodeHistogram)) line.add_list(kCodeHistogram, e.codes);
  return line.str();
}

std::string json_line(const GemmEvent& e) {
  JsonLine line("gemm");
  line.add("step", e.step).add("layer", e.where.layer).add("block", e.where.block).add("gemm", e.where.gemm);
  return line.add(kOutputError, e.output_error).add("explained", e.explained).str();
}

std::string json_line(const WeightEvent& e) {
  JsonLine line("weight");
  line.add("step", e.step).add("layer", e.layer).add("block", e.block);
  line.add("update_ratio", e.update_ratio).add("gradient_zeros", e.gradient_zeros);
  line.add("gradient_rms", e.gradient_rms);
  return line.add("oscillation", e.oscillation).add("changed", e.changed).str();
}

std::string json_line(const LayerEvent& e) {
  JsonLine line("layer");
  line.add("step", e.step).add("layer", e.layer).add("residual_rms", e.residual_rms);
  return line.add("residual_amax", e.residual_amax).add(kLogitMax, e.attention_logit_max).str();
}

std::string json_line(const AlarmEvent& e) {
  JsonLine line("alarm");
  line.add("step", e.step).add("severity", name(e.severity)).add("rule", e.rule);
  add_where(line, e.where);
  line.add("text", e.text).add("value", e.value).add("threshold", e.threshold);
  if (!e.remedy.empty()) line.add("remedy", e.remedy);
  return line.str();
}

std::string json_line(const CheckpointEvent& e) {
  return JsonLine("checkpoint").add("step", e.step).add("path", e.path).add("seconds", e.seconds).str();
}

std::string json_line(const SwitchEvent& e) {
  return JsonLine("switch").add("step", e.step).add("from", e.from).add("to", e.to).add("what", e.what).str();
}

}  // namespace nibble
