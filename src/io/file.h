// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

/// A file mapped read-only. Pages come from disk when they are touched. Throws Error naming the file
/// when it is missing, not a regular file, or cannot be mapped. An empty file gives an empty span.
/// The file must not be shortened while it is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Writes a file with every call checked. A full disk, a quota or a size limit throws an Error that names
/// the file and says what to do; nothing is buffered here, so a write that returned is with the kernel.
class FileWriter {
 public:
  enum class Mode { Truncate, Append };
  explicit FileWriter(const std::filesystem::path& path, Mode mode = Mode::Truncate);
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&& other) noexcept;

  void write(std::span<const std::byte> bytes);  ///< at the end of what was written so far
  void write(std::string_view text);
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);  ///< does not move the end
  void sync();                                                           ///< to the disk itself
  void close();  ///< reports errors that the kernel kept for last; the destructor cannot
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// The whole file as text. Throws Error naming the file.
std::string read_file(const std::filesystem::path& path);

/// Writes, syncs and closes.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Replaces `path` so that a reader, or a crash, sees the old bytes or the new, never a mixture.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Makes names (creations, renames) in a directory survive a power failure.
void sync_directory(const std::filesystem::path& directory);

/// mkdir -p with an Error that names the directory.
void make_directories(const std::filesystem::path& directory);

/// Why a file operation failed and what to do about it, from errno. For a file system that is full it
/// speaks of space rather than of the system call.
std::string io_failure(std::string_view action, const std::filesystem::path& path, int error_number);

}  // namespace nibble
