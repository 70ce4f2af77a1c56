// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

/// One flat JSON object of a log as JsonLine writes it: strings, numbers and lists of whole numbers, no
/// object inside. Views into the line; a hundred thousand steps of telemetry are too many for a general
/// reader.
class FlatJson {
 public:
  /// Throws Error{Runtime} for a line of another form. Reuses the memory of the line before.
  void parse(std::string_view line);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Throw Error{Runtime} naming a key that is not there or is of another type.
  std::string text(std::string_view key) const;
  std::string_view raw_text(std::string_view key) const;  ///< escapes as they stand
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  ///< or "NaN", "Infinity", "-Infinity"
  double number_or(std::string_view key, double otherwise) const;
  std::array<std::int64_t, 16> bins_or_zero(std::string_view key) const;

 private:
  /// Looks from the field after the one found last: readers ask in the order of the log.
  const std::string_view* find(std::string_view key) const;
  std::string_view at(std::string_view key) const;

  std::vector<std::pair<std::string_view, std::string_view>> fields_;
  mutable std::size_t next_ = 0;
};

}  // namespace nibble
