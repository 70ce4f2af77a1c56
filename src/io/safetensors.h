// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "tensor/dtype.h"

namespace nibble {

/// The safetensors format [SAFETENSORS]: u64 little-endian N, N bytes of JSON (padded with spaces), then
/// one buffer. JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__": {}}.
/// Little-endian, row-major. N is at most 100,000,000; the tensors cover the buffer without holes or
/// overlap, exactly to the end of the file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;   ///< empty for a scalar; sizes may be 0
  std::span<const std::byte> bytes;  ///< into the mapped file, aligned as the file has it

  std::int64_t numel() const;
  /// The bytes as numbers of type T. Throws Error when sizeof(T) is not the dtype's size.
  template <class T>
  std::vector<T> copy_as() const;
};

/// One file or a Hugging Face folder, checked in full when it is opened. Entries point into the mapped files,
/// which live as long as this object. Throws Error naming the file and the tensor.
class Safetensors {
 public:
  /// A .safetensors file.
  static Safetensors open_file(const std::filesystem::path& path);

  /// A folder with model.safetensors, or with model.safetensors.index.json and the shards it names: every
  /// tensor of the weight_map must be in its shard, and every tensor of a shard in the weight_map.
  static Safetensors open_model(const std::filesystem::path& directory);

  /// In the order of their bytes, file after file.
  const std::vector<SafetensorsEntry>& entries() const& { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const&;  ///< nullptr when absent
  const SafetensorsEntry& at(std::string_view name) const&;    ///< throws, naming near misses
  // What they return lives in this object; asking a temporary for it would dangle.
  void entries() && = delete;
  void find(std::string_view) && = delete;
  void at(std::string_view) && = delete;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void add_file(const std::filesystem::path& path);
  void index_names();

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
};

/// Writes a file in pieces: all tensors are declared first, then their bytes come in any order, each
/// tensor's in one or several parts. Tensors are laid out by falling element size, then by name, as the
/// reference writer does, so a tensor is always aligned to its element size.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsDeclaration> tensors,
                    std::map<std::string, std::string> metadata = {{"format", "pt"}});

  /// Appends to what tensor `name` got so far. Throws for an unknown name or too many bytes.
  void write(std::string_view name, std::span<const std::byte> bytes);
  template <class T>
  void write(std::string_view name, std::span<const T> values) {
    write(name, std::as_bytes(values));
  }

  /// Throws naming the first tensor whose bytes are not complete; then syncs and closes.
  void finish();

 private:
  struct Slot {
    std::int64_t offset, size, written;
  };
  FileWriter file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

/// Names with "model.safetensors.index.json" in `directory`: tensor -> shard, and the total of the bytes.
void write_safetensors_index(const std::filesystem::path& directory,
                             const std::map<std::string, std::string>& weight_map, std::int64_t total_size);

namespace detail {
[[noreturn]] void fail_element_size(const SafetensorsEntry& entry, std::size_t size);
void copy_bytes(const SafetensorsEntry& entry, void* out);
}  // namespace detail

template <class T>
std::vector<T> SafetensorsEntry::copy_as() const {
  if (sizeof(T) != size_of(dtype)) detail::fail_element_size(*this, sizeof(T));
  std::vector<T> out(static_cast<std::size_t>(numel()));
  detail::copy_bytes(*this, out.data());
  return out;
}

}  // namespace nibble
