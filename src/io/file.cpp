// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace nibble {

std::string io_failure(std::string_view action, const std::filesystem::path& path, int error_number) {
  const char* remedy = "";
  switch (error_number) {
    case ENOSPC:
      return fmt::format(
          "cannot {} {}: no space left on the device. Free some space (older checkpoints are the usual "
          "candidates), or point the output at another disk, and run the same command again; what was "
          "completed before is intact",
          action, path.string());
    case EDQUOT:
      remedy = ". Your disk quota is used up: free some space or write elsewhere";
      break;
    case EFBIG:
      remedy = ". A file size limit was reached (see `ulimit -f`): raise it or write elsewhere";
      break;
    case EACCES:
    case EPERM:
      remedy = ". Check the permissions of the file and of its directory";
      break;
    case ENOENT:
      remedy = ". Check the path for a typing error";
      break;
    case EROFS:
      remedy = ". The file system is read-only: write elsewhere";
      break;
    default:
      break;
  }
  return fmt::format("cannot {} {}: {}{}", action, path.string(), std::strerror(error_number), remedy);
}

namespace {

[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path, int error_number) {
  fail("{}", io_failure(action, path, error_number));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_io("read", path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error_number = errno;
    ::close(fd);
    fail_io("read", path, error_number);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    fail("cannot read {}: it is not a regular file", path.string());
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error_number = errno;
    ::close(fd);
    if (mapped == MAP_FAILED) fail_io("map", path, error_number);
    data_ = static_cast<const std::byte*>(mapped);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileWriter::FileWriter(const std::filesystem::path& path, Mode mode) : path_(path) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::Append ? O_APPEND : O_TRUNC);
  fd_ = ::open(path.c_str(), flags, 0644);
  if (fd_ < 0) fail_io("create", path, errno);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail_io("write", path_, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FileWriter::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void FileWriter::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0) {
      if (errno == EINTR) continue;
      fail_io("write", path_, errno);
    }
    offset += n;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FileWriter::sync() {
  // EINVAL: a pipe or a device has nothing to sync, and what was written to it is gone from here already.
  if (::fsync(fd_) != 0 && errno != EINVAL) fail_io("write", path_, errno);
}

void FileWriter::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_io("write", path_, errno);
}

std::string read_file(const std::filesystem::path& path) { return std::string(MappedFile(path).text()); }

void write_file(const std::filesystem::path& path, std::string_view text) {
  FileWriter file(path);
  file.write(text);
  file.sync();
  file.close();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  try {
    write_file(temporary, text);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("replace", path, errno);
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

void sync_directory(const std::filesystem::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_io("open directory", directory, errno);
  const bool ok = ::fsync(fd) == 0 || errno == EINVAL;  // some network file systems sync names by themselves
  const int error_number = errno;
  ::close(fd);
  if (!ok) fail_io("sync directory", directory, error_number);
}

void make_directories(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_io("create directory", directory, error.value());
}

}  // namespace nibble
