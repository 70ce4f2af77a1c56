// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/json.h"

namespace nibble {

/// One JSON object on one line, keys in the order they were added.
/// A float is written so that it reads back as the same float, a double likewise; "Infinity", "-Infinity"
/// and "NaN" are strings.
class JsonLine {
 public:
  template <class T>
  JsonLine& add(std::string_view key, const T& value) {
    if constexpr (std::same_as<T, bool>)
      return add_raw(key, value ? "true" : "false");
    else if constexpr (std::floating_point<T>)
      return add_raw(key, json_number(value));
    else if constexpr (std::integral<T>)
      return add_raw(key, fmt::format("{}", value));
    else if constexpr (std::convertible_to<T, std::string_view>)
      return add_raw(key, json_quote(value));
    else
      return add_raw(key, Json(value).dump());
  }
  JsonLine& add_raw(std::string_view key, std::string_view json);  ///< `json` is written as it is

  std::string text() const { return text_ + "}\n"; }

 private:
  std::string text_ = "{";
};

/// Appends lines to a file. Each line reaches the kernel in one write before write() returns, so a killed
/// process loses no finished line and a reader sees at most one torn line, at the end.
class JsonlWriter {
 public:
  explicit JsonlWriter(const std::filesystem::path& path) : file_(path, FileWriter::Mode::Append) {}
  void write(const JsonLine& line) { file_.write(line.text()); }
  void sync() { file_.sync(); }

 private:
  FileWriter file_;
};

/// All lines as JSON. A last line without a newline is what a killed writer leaves: it is dropped.
/// Any other line that is not JSON throws Error with file and line number.
std::vector<Json> read_jsonl(const std::filesystem::path& path);

/// Keeps the lines whose `key` is at most `last`, and those without it, as the bytes they were; the rest, and
/// a torn last line, go. The file is replaced atomically. Does nothing when there is no such file. For a run
/// that resumes at step `last`: what it logs after that is logged again.
void truncate_jsonl_after(const std::filesystem::path& path, const std::string& key, std::int64_t last);

}  // namespace nibble
