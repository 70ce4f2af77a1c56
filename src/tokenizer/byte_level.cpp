// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_level.h"

#include <cstdint>

namespace nibble {
namespace {

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    out[b] = printable ? b : next++;
  }
  return out;
}

constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();
constexpr char32_t kAlphabetEnd = 0x100 + 68;

constexpr std::array<std::int16_t, kAlphabetEnd> make_reverse() {
  std::array<std::int16_t, kAlphabetEnd> out{};
  for (auto& v : out) v = -1;
  for (int b = 0; b < 256; ++b) out[kAlphabet[b]] = static_cast<std::int16_t>(b);
  return out;
}

constexpr std::array<std::int16_t, kAlphabetEnd> kReverse = make_reverse();

struct Utf8Step {
  int length;  ///< bytes to skip: of the character, or of the invalid beginning of one
  bool valid;
};

/// Looks at the character that starts at text[i], by the table of well-formed byte sequences in the
/// Unicode standard (second byte ranges differ after E0, ED, F0 and F4).
Utf8Step utf8_step(std::string_view text, std::size_t i) {
  const auto at = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = at(i);
  if (lead < 0x80) return {1, true};
  int length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0) return {1, false};
  for (int k = 1; k < length; ++k) {
    if (i + k >= text.size()) return {k, false};
    unsigned char low = 0x80, high = 0xBF;
    if (k == 1 && lead == 0xE0) low = 0xA0;
    if (k == 1 && lead == 0xED) high = 0x9F;
    if (k == 1 && lead == 0xF0) low = 0x90;
    if (k == 1 && lead == 0xF4) high = 0x8F;
    if (at(i + k) < low || at(i + k) > high) return {k, false};
  }
  return {length, true};
}

}  // namespace

const std::array<char32_t, 256>& byte_level_alphabet() { return kAlphabet; }

void append_utf8(std::string& out, char32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, kAlphabet[static_cast<unsigned char>(c)]);
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    char32_t c = lead;
    if (lead >= 0x80) {
      // The whole alphabet lies below U+0800, so a longer character cannot belong to it.
      if (lead < 0xC2 || lead > 0xDF || i + 1 >= text.size()) return std::nullopt;
      c = static_cast<char32_t>((lead & 0x1F) << 6 | (static_cast<unsigned char>(text[i + 1]) & 0x3F));
      ++i;
    }
    ++i;
    if (c >= kAlphabetEnd || kReverse[c] < 0) return std::nullopt;
    out += static_cast<char>(kReverse[c]);
  }
  return out;
}

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (!step.valid) return i;
    i += static_cast<std::size_t>(step.length);
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (step.valid) {
      out += text.substr(i, static_cast<std::size_t>(step.length));
    } else {
      append_utf8(out, 0xFFFD);
    }
    i += static_cast<std::size_t>(step.length);
  }
  return out;
}

}  // namespace nibble
