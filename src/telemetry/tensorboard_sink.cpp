// SPDX-License-Identifier: Apache-2.0
#include "telemetry/tensorboard_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"

namespace nibble {
namespace {

template <class T>
std::string little(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}

// A field's number and wire type, then its content.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
std::string key(int field, int wire) { return varint(static_cast<std::uint64_t>(field << 3 | wire)); }
std::string number(int field, std::uint64_t value) { return key(field, kVarint) + varint(value); }
std::string real(int field, double value) { return key(field, kFixed64) + little(value); }
std::string bytes_of(int field, std::string_view content) {
  return key(field, kBytes) + varint(content.size()) + std::string(content);
}
std::string packed(int field, const std::vector<double>& values) {
  std::string content;
  for (const double v : values) content += little(v);
  return bytes_of(field, content);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("host");
}

std::string tag_of(const OperandName& w, const char* what) {
  return fmt::format("{}/{}/{}/{}", w.layer, w.gemm, w.operand, what);
}

}  // namespace

std::string event_record(std::string_view data) {
  const std::string length = little(static_cast<std::uint64_t>(data.size()));
  return length + little(masked_crc32c(length)) + std::string(data) + little(masked_crc32c(data));
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 {status = 1: START = 1}.
EventMessage::EventMessage(double wall_time, std::int64_t step)
    : head_(real(1, wall_time) + number(2, static_cast<std::uint64_t>(step))) {}

void EventMessage::file_version() { head_ += bytes_of(3, "brain.Event:2"); }

void EventMessage::session_start() { head_ += bytes_of(7, number(1, 1)); }

// Summary: value = 1. Value: tag = 1, simple_value = 2, histo = 5.
void EventMessage::value(std::string_view tag, const std::string& rest) {
  summary_ += bytes_of(1, bytes_of(1, tag) + rest);
}

void EventMessage::scalar(std::string_view tag, double v) {
  value(tag, key(2, kFixed32) + little(static_cast<float>(v)));
}

// HistogramProto: min = 1, max = 2, num = 3, sum = 4, sum_squares = 5, bucket_limit = 6, bucket = 7.
void EventMessage::histogram(std::string_view tag, double low, const std::vector<double>& limits,
                             const std::vector<std::int64_t>& counts) {
  check(limits.size() == counts.size() && !limits.empty(), "a histogram of {} limits and {} counts",
        limits.size(), counts.size());
  double least = limits.back(), most = low, total = 0, sum = 0, squares = 0;
  std::vector<double> buckets;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto n = static_cast<double>(counts[i]);
    const double from = i == 0 ? low : limits[i - 1], middle = (from + limits[i]) / 2;
    buckets.push_back(n);
    total += n, sum += n * middle, squares += n * middle * middle;
    if (counts[i] > 0) least = std::min(least, from), most = std::max(most, limits[i]);
  }
  if (total == 0) least = most = 0;
  value(tag, bytes_of(5, real(1, least) + real(2, most) + real(3, total) + real(4, sum) + real(5, squares) +
                             packed(6, limits) + packed(7, buckets)));
}

std::string EventMessage::bytes() const { return summary_.empty() ? head_ : head_ + bytes_of(5, summary_); }

TensorBoardSink::TensorBoardSink(const std::filesystem::path& directory,
                                 std::optional<std::int64_t> resume_step) {
  std::filesystem::create_directories(directory);
  const auto seconds = static_cast<std::int64_t>(now());
  // Two arms of one process, or a resume within a second, may not share a file.
  for (int n = 0; fd_ < 0; ++n) {
    path_ = directory / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host(), ::getpid(), n);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    check(fd_ >= 0 || errno == EEXIST, "cannot open {} for writing: {}", path_.string(),
          std::strerror(errno));
  }
  EventMessage opening(now(), 0);
  opening.file_version();
  write(opening);
  if (!resume_step) return;
  EventMessage start(now(), *resume_step + 1);
  start.session_start();
  write(start);
}

TensorBoardSink::~TensorBoardSink() { ::close(fd_); }

void TensorBoardSink::write(const EventMessage& m) {
  const std::string record = event_record(m.bytes());
  std::size_t done = 0;
  while (done < record.size()) {
    const auto n = ::write(fd_, record.data() + done, record.size() - done);
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "cannot write to {}: {}; free some space and resume from the last checkpoint",
          path_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
}

void TensorBoardSink::on(const TrainEvent& e) {
  EventMessage m(now(), e.step);
  m.scalar("train/loss", e.loss);
  m.scalar("train/grad_norm", e.grad_norm);
  m.scalar("train/lr", e.lr);
  m.scalar("train/tokens_per_s", e.tokens_per_s);
  if (e.mfu) m.scalar("train/mfu", *e.mfu);
  write(m);
}

void TensorBoardSink::on(const EvalEvent& e) {
  EventMessage m(now(), e.step);
  m.scalar(e.set == "validation" ? "val/loss" : "val/" + e.set + "/loss", e.loss);
  write(m);
}

void TensorBoardSink::on(const QuantEvent& e) {
  EventMessage m(now(), e.step);
  m.scalar(tag_of(e.where, "sqnr_db"), e.sqnr_db);
  m.scalar(tag_of(e.where, "flushed"), e.flushed);
  m.scalar(tag_of(e.where, "amax"), e.amax);
  // scale_bin: bin b holds log2 of scales from b - 7 to b - 6.
  std::vector<double> limits;
  for (std::size_t b = 0; b < e.scale_log2.size(); ++b) limits.push_back(static_cast<double>(b) - 6);
  m.histogram(tag_of(e.where, "scale_log2"), -7, limits, {e.scale_log2.begin(), e.scale_log2.end()});
  write(m);
}

void TensorBoardSink::on(const GemmEvent& e) {
  EventMessage m(now(), e.step);
  m.scalar(e.where.layer + "/" + e.where.gemm + "/output_error", e.output_error);
  write(m);
}

void TensorBoardSink::on(const WeightEvent& e) {
  EventMessage m(now(), e.step);
  m.scalar(e.layer + "/weight/update_ratio", e.update_ratio);
  m.scalar(e.layer + "/weight/gradient_zeros", e.gradient_zeros);
  if (!std::isnan(e.oscillation)) m.scalar(e.layer + "/weight/oscillation", e.oscillation);
  write(m);
}

void TensorBoardSink::on(const LayerEvent& e) {
  EventMessage m(now(), e.step);
  if (!std::isnan(e.residual_rms)) m.scalar(e.layer + "/residual_rms", e.residual_rms);
  if (!std::isnan(e.attention_logit_max)) m.scalar(e.layer + "/attention_logit_max", e.attention_logit_max);
  write(m);
}

void TensorBoardSink::sync() {
  check(::fsync(fd_) == 0, "cannot make {} durable: {}", path_.string(), std::strerror(errno));
}

}  // namespace nibble
