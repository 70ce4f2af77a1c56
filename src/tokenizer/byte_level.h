// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// The printable code point that stands for each byte in a byte-level vocabulary: bytes 33-126, 161-172
/// and 174-255 stand for themselves, the other 68 follow in order from U+0100. Source: [TOKENIZERS].
const std::array<char32_t, 256>& byte_level_alphabet();

/// The bytes as text of that alphabet, UTF-8 encoded ("a b" becomes "a\u0120b").
std::string to_byte_level(std::string_view bytes);

/// The reverse, or nothing when a character is outside the alphabet (an added token with a space, say).
std::optional<std::string> from_byte_level(std::string_view text);

/// Appends the code point as UTF-8.
void append_utf8(std::string& out, char32_t code_point);

/// Offset of the first byte that is not valid UTF-8 (surrogates and overlong forms are not), or npos.
std::size_t first_invalid_utf8(std::string_view text);

/// Every invalid sequence (the longest one that could have begun a character, else one byte) replaced by
/// U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace nibble
