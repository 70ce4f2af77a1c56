// SPDX-License-Identifier: Apache-2.0
#include "io/hash.h"

#include <xxhash.h>

#include <new>

#include "base/error.h"
#include "io/file.h"

namespace nibble {

// One state of each width: a caller rarely knows beforehand which digest a reader will ask for, and the
// hash is never what a run waits for.
struct Xxh3::Impl {
  XXH3_state_t* narrow = XXH3_createState();
  XXH3_state_t* wide = XXH3_createState();
  ~Impl() {
    XXH3_freeState(narrow);
    XXH3_freeState(wide);
  }
};

namespace {

std::string hex128(XXH128_hash_t h) { return hex64(h.high64) + hex64(h.low64); }

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Xxh3::Xxh3() : impl_(std::make_unique<Impl>()) {
  if (impl_->narrow == nullptr || impl_->wide == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(impl_->narrow);
  XXH3_128bits_reset(impl_->wide);
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

Xxh3& Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(impl_->narrow, bytes.data(), bytes.size());
  XXH3_128bits_update(impl_->wide, bytes.data(), bytes.size());
  return *this;
}

Xxh3& Xxh3::update(std::string_view text) { return update(bytes_of(text)); }

std::uint64_t Xxh3::digest64() const { return XXH3_64bits_digest(impl_->narrow); }

std::string Xxh3::digest128_hex() const { return hex128(XXH3_128bits_digest(impl_->wide)); }

std::uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::uint64_t xxh3_64(std::string_view text) { return xxh3_64(bytes_of(text)); }

std::string xxh3_128_hex(std::span<const std::byte> bytes) {
  return hex128(XXH3_128bits(bytes.data(), bytes.size()));
}
std::string xxh3_128_hex(std::string_view text) { return xxh3_128_hex(bytes_of(text)); }

std::string xxh3_128_hex_of_file(const std::filesystem::path& path) {
  return xxh3_128_hex(MappedFile(path).bytes());
}

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace nibble
