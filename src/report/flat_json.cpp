// SPDX-License-Identifier: Apache-2.0
#include "report/flat_json.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "io/json.h"

namespace nibble {
namespace {

/// The end of a string whose opening quote is at `at`: one past its closing quote.
std::size_t end_of_string(std::string_view line, std::size_t at) {
  for (std::size_t i = at + 1; i < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      return i + 1;
    }
  }
  fail("a string does not end");
}

std::size_t end_of_value(std::string_view line, std::size_t at) {
  if (at < line.size() && line[at] == '"') return end_of_string(line, at);
  const char* const stop = at < line.size() && line[at] == '[' ? "]" : ",}";
  const std::size_t end = line.find_first_of(stop, at);
  check(end != std::string_view::npos && end > at, "a value does not end");
  return *stop == ']' ? end + 1 : end;
}

}  // namespace

void FlatJson::parse(std::string_view line) {
  fields_.clear();
  next_ = 0;
  check(line.size() >= 2 && line.front() == '{' && line.back() == '}', "it is not one JSON object");
  std::size_t at = 1;
  while (line[at] != '}') {
    check(line[at] == '"', "a name is missing");
    const std::size_t name_end = end_of_string(line, at);
    check(name_end + 1 < line.size() && line[name_end] == ':', "a name without a value");
    const std::size_t end = end_of_value(line, name_end + 1);
    check(end < line.size() && (line[end] == ',' || line[end] == '}'), "a comma is missing");
    fields_.emplace_back(line.substr(at + 1, name_end - at - 2),
                         line.substr(name_end + 1, end - name_end - 1));
    at = line[end] == ',' ? end + 1 : end;
  }
  check(at + 1 == line.size(), "something follows the object");
}

const std::string_view* FlatJson::find(std::string_view key) const {
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (next_ >= fields_.size()) next_ = 0;
    const auto& [name, value] = fields_[next_++];
    if (name == key) return &value;
  }
  return nullptr;
}

std::string_view FlatJson::at(std::string_view key) const {
  const std::string_view* value = find(key);
  check(value != nullptr, "\"{}\" is missing", key);
  return *value;
}

std::string_view FlatJson::raw_text(std::string_view key) const {
  const std::string_view value = at(key);
  check(value.size() >= 2 && value.front() == '"', "\"{}\" is not a string", key);
  return value.substr(1, value.size() - 2);
}

std::string FlatJson::text(std::string_view key) const {
  const std::string_view raw = raw_text(key);
  if (raw.find('\\') == std::string_view::npos) return std::string(raw);
  try {
    const std::string_view quoted = at(key);
    return Json::parse(quoted.begin(), quoted.end()).get<std::string>();
  } catch (const Json::exception& e) {
    fail("\"{}\": {}", key, e.what());
  }
}

std::int64_t FlatJson::integer(std::string_view key) const {
  const std::string_view value = at(key);
  std::int64_t out = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), out);
  check(read.ec == std::errc() && read.ptr == value.data() + value.size(), "\"{}\" is not a whole number",
        key);
  return out;
}

double FlatJson::number(std::string_view key) const {
  const std::string_view value = at(key);
  double out = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), out);
  if (read.ec == std::errc() && read.ptr == value.data() + value.size()) return out;
  if (value == "\"Infinity\"") return std::numeric_limits<double>::infinity();
  if (value == "\"-Infinity\"") return -std::numeric_limits<double>::infinity();
  check(value == "\"NaN\"" || read.ec == std::errc::result_out_of_range, "\"{}\" is not a number", key);
  return value == "\"NaN\"" ? std::numeric_limits<double>::quiet_NaN() : 0;
}

double FlatJson::number_or(std::string_view key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

std::array<std::int64_t, 16> FlatJson::bins_or_zero(std::string_view key) const {
  std::array<std::int64_t, 16> bins{};
  if (!has(key)) return bins;
  const std::string_view list = at(key);
  const char *p = list.data(), *const end = p + list.size();
  check(*p == '[', "\"{}\" is not a list", key);
  for (std::int64_t& bin : bins) {
    const auto read = std::from_chars(p + 1, end, bin);
    check(read.ec == std::errc() && read.ptr < end, "\"{}\" is not a list of 16 whole numbers", key);
    p = read.ptr;
  }
  check(*p == ']' && p + 1 == end, "\"{}\" is not a list of 16 whole numbers", key);
  return bins;
}

}  // namespace nibble
