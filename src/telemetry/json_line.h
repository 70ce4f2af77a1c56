// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// Builds one JSON object on one line, fields in the order they are added.
///
/// Doubles are written with 17 significant digits and floats with 9, so reading them back gives the same
/// bits and two logs can be compared for equality. JSON has no words for NaN and infinity: they are the
/// strings "NaN", "Infinity" and "-Infinity". An empty optional adds nothing.
/// Non-goals: nesting and reading. Sinks write flat lines; readers use a JSON library higher up.
class JsonLine {
 public:
  explicit JsonLine(std::string_view type) { add("type", type); }

  JsonLine& add(std::string_view key, std::string_view value) { return put(key, quoted(value)); }
  JsonLine& add(std::string_view key, const std::string& value) { return put(key, quoted(value)); }
  JsonLine& add(std::string_view key, const char* value) { return put(key, quoted(value)); }
  JsonLine& add(std::string_view key, double value) { return put(key, number(value)); }
  JsonLine& add(std::string_view key, float value) { return put(key, number(value)); }
  JsonLine& add(std::string_view key, int value) { return put(key, fmt::format("{}", value)); }
  JsonLine& add(std::string_view key, std::int64_t value) { return put(key, fmt::format("{}", value)); }
  JsonLine& add(std::string_view key, std::uint64_t value) { return put(key, fmt::format("{}", value)); }
  JsonLine& add(std::string_view key, bool value) { return put(key, value ? "true" : "false"); }
  template <class T>
  JsonLine& add(std::string_view key, const std::optional<T>& value) {
    return value ? add(key, *value) : *this;
  }
  /// A hash as sixteen hexadecimal digits: JavaScript and many readers lose integers above 2^53.
  JsonLine& add_hash(std::string_view key, std::uint64_t value) {
    return add(key, fmt::format("{:016x}", value));
  }
  template <class Range>
  JsonLine& add_list(std::string_view key, const Range& values) {
    std::string text = "[";
    for (const auto& v : values) {
      if (text.size() > 1) text += ',';
      text += number(v);
    }
    return put(key, text + "]");
  }

  /// The line without a line feed.
  std::string str() const { return text_ + "}"; }

  static std::string quoted(std::string_view s);
  static std::string number(double v) { return finite_or_name(v, 17); }
  static std::string number(std::int64_t v) { return fmt::format("{}", v); }
  static std::string number(float v) { return finite_or_name(static_cast<double>(v), 9); }

 private:
  static std::string finite_or_name(double v, int digits) {
    if (std::isnan(v)) return "\"NaN\"";
    if (std::isinf(v)) return v > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return fmt::format("{:.{}g}", v, digits);
  }
  JsonLine& put(std::string_view key, std::string_view value) {
    text_ += text_.size() > 1 ? "," : "";
    text_ += quoted(key);
    text_ += ':';
    text_ += value;
    return *this;
  }

  std::string text_ = "{";
};

inline std::string JsonLine::quoted(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

}  // namespace nibble
