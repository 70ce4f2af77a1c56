// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// XXH3 (the xxHash family's 64- and 128-bit hash): fast, not cryptographic. It finds accidents
/// (flipped bits, swapped files), not attacks. Values are those of the public specification, so any
/// other XXH3 tool can check them.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  Xxh3& update(std::span<const std::byte> bytes);
  Xxh3& update(std::string_view text);

  /// Hashes of everything given so far; more may follow.
  std::uint64_t digest64() const;
  std::string digest128_hex() const;  ///< 32 lower-case digits, high half first

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::uint64_t xxh3_64(std::span<const std::byte> bytes);
std::uint64_t xxh3_64(std::string_view text);
std::string xxh3_128_hex(std::span<const std::byte> bytes);
std::string xxh3_128_hex(std::string_view text);

/// XXH3-128 of a file's bytes. Throws Error naming the file when it cannot be read.
std::string xxh3_128_hex_of_file(const std::filesystem::path& path);

/// 16 lower-case digits.
std::string hex64(std::uint64_t value);

}  // namespace nibble
