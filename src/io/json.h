// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace nibble {

using Json = nlohmann::json;

struct JsonOptions {
  /// JSON leaves a repeated key undefined. Costs a set of the keys seen; for formats that forbid it.
  bool refuse_duplicate_keys = false;
};

/// Parses JSON and the bare words Infinity, -Infinity and NaN that Python writes. Those become
/// {"__float__": "Infinity"}, the form transformers 5 writes; json_get<double> reads both.
/// Throws Error naming `source` (a file name for the message) with the line and column.
Json parse_json(std::string_view text, const std::string& source, JsonOptions options = {});
Json read_json(const std::filesystem::path& path, JsonOptions options = {});

/// A number, or {"__float__": "Infinity" | "-Infinity" | "NaN"}.
bool json_is_double(const Json& value);
double json_double(const Json& value, const std::string& where);

/// A double in a form JSON has: the number, or {"__float__": ...} when it is not finite.
Json json_from_double(double value);

/// The shortest decimal that reads back as the same bits (at most 17 significant digits for a double, 9 for
/// a float); "Infinity", "-Infinity" and "NaN" in quotes, since JSON has no such numbers.
std::string json_number(double value);
std::string json_number(float value);

/// The text as a JSON string, with its quotes.
std::string json_quote(std::string_view text);

/// Indented by two spaces, with a newline at the end.
std::string dump_json(const Json& value);
void write_json(const std::filesystem::path& path, const Json& value);

namespace detail {
[[noreturn]] void fail_json_type(const std::string& where, std::string_view key, const char* expected,
                                 const Json& found);
template <class T>
T json_convert(const Json& value, std::string_view key, const std::string& where) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) fail_json_type(where, key, "true or false", value);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json_is_double(value)) fail_json_type(where, key, "a number", value);
    return static_cast<T>(json_double(value, where));
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) fail_json_type(where, key, "an integer", value);
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                                 : std::in_range<T>(value.get<std::int64_t>());
    if (!fits)
      fail_json_type(where, key, std::is_unsigned_v<T> ? "an integer >= 0" : "a smaller integer", value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) fail_json_type(where, key, "a string", value);
  }
  try {
    return value.get<T>();
  } catch (const nlohmann::json::exception&) {
    fail_json_type(where, key, "a value of another type", value);
  }
}
}  // namespace detail

/// object[key] as T (bool, integers, double, std::string, std::vector of those, Json). Throws Error
/// naming `where` (usually the file) and the key when it is missing or of another type.
template <class T>
T json_get(const Json& object, const std::string& key, const std::string& where) {
  check(object.is_object(), "{}: expected a JSON object around key \"{}\", found {}", where, key,
        object.type_name());
  const auto it = object.find(key);
  check(it != object.end(), "{}: key \"{}\" is missing", where, key);
  return detail::json_convert<T>(*it, key, where);
}

/// As json_get, with `fallback` where the key is missing or null.
template <class T>
T json_get_or(const Json& object, const std::string& key, T fallback, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || object.at(key).is_null()) return fallback;
  return json_get<T>(object, key, where);
}

}  // namespace nibble
