// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <cmath>
#include <limits>
#include <unordered_set>

#include "io/file.h"

namespace nibble {
namespace {

constexpr std::string_view kFloatKey = "__float__";

/// Rewrites the bare words outside strings. Returns an empty string when there are none, so that the usual
/// file is not copied.
std::string replace_bare_floats(std::string_view text) {
  std::string out;
  std::size_t copied = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
      continue;
    }
    if (c == '"') {
      in_string = true;
      continue;
    }
    if (c != 'I' && c != 'N' && c != '-') continue;
    for (std::string_view word : {"Infinity", "-Infinity", "NaN"}) {
      if (text.substr(i, word.size()) != word) continue;
      out += text.substr(copied, i - copied);
      out += fmt::format("{{\"{}\":\"{}\"}}", kFloatKey, word);
      i += word.size() - 1;
      copied = i + 1;
      break;
    }
  }
  if (copied > 0) out += text.substr(copied);
  return out;
}

/// Counts keys at each nesting level while nlohmann parses, which keeps only the last of equal keys.
struct DuplicateKeys {
  std::vector<std::unordered_set<std::string>> open;
  std::string source;
  bool operator()(int, nlohmann::json::parse_event_t event, const Json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key) {
      const bool is_new = open.back().insert(value.get<std::string>()).second;
      check(is_new, "{}: key \"{}\" appears twice in one JSON object", source, value.get<std::string>());
    }
    return true;
  }
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source, JsonOptions options) {
  const std::string rewritten = replace_bare_floats(text);
  const std::string_view input = rewritten.empty() ? text : std::string_view(rewritten);
  try {
    if (options.refuse_duplicate_keys) {
      return Json::parse(input.begin(), input.end(), DuplicateKeys{.open = {}, .source = source});
    }
    return Json::parse(input.begin(), input.end());
  } catch (const nlohmann::json::parse_error& e) {
    // The library's text starts with its own tag in brackets; the user needs the place and the reason.
    std::string reason = e.what();
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    fail("{}: not valid JSON: {}", source, reason);
  }
}

Json read_json(const std::filesystem::path& path, JsonOptions options) {
  const MappedFile file(path);
  return parse_json(file.text(), path.string(), options);
}

bool json_is_double(const Json& value) {
  if (value.is_number()) return true;
  return value.is_object() && value.size() == 1 && value.contains(kFloatKey) &&
         value.at(kFloatKey.data()).is_string();
}

double json_double(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  check(json_is_double(value), "{}: expected a number, found {}", where, value.dump());
  const auto word = value.at(kFloatKey.data()).get<std::string>();
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  fail("{}: \"{}\" is not a number; known are Infinity, -Infinity and NaN", where, word);
}

Json json_from_double(double value) {
  if (std::isfinite(value)) return value;
  return {{std::string(kFloatKey), std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity"}};
}

namespace {
template <class T>
std::string number_text(T value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  std::string text = fmt::format("{}", value);
  // A reader must see a floating-point number, and minus zero only exists as one.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}
}  // namespace

std::string json_number(double value) { return number_text(value); }
std::string json_number(float value) { return number_text(value); }

std::string json_quote(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump_json(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_json(const std::filesystem::path& path, const Json& value) { write_file(path, dump_json(value)); }

void detail::fail_json_type(const std::string& where, std::string_view key, const char* expected,
                            const Json& found) {
  std::string text = found.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  fail("{}: key \"{}\" should be {}, found {} ({})", where, key, expected, text, found.type_name());
}

}  // namespace nibble
