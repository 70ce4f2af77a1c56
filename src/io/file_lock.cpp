// SPDX-License-Identifier: Apache-2.0
#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "io/file.h"

namespace nibble {
namespace {

int open_for_lock(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail("{}", io_failure("make the lock", path, errno));
  return fd;
}

/// flock, begun again when a signal interrupts it. Returns its errno.
int lock(int fd, int operation) {
  while (::flock(fd, operation) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

[[noreturn]] void give_up(int fd, const std::filesystem::path& path, int error) {
  ::close(fd);
  fail("{}", io_failure("lock", path, error));
}

}  // namespace

std::optional<FileLock> FileLock::try_to(const std::filesystem::path& path) {
  const int fd = open_for_lock(path);
  const int error = lock(fd, LOCK_EX | LOCK_NB);
  if (error == 0) return FileLock(fd);
  if (error != EWOULDBLOCK) give_up(fd, path, error);
  ::close(fd);
  return std::nullopt;
}

FileLock FileLock::wait_for(const std::filesystem::path& path) {
  const int fd = open_for_lock(path);
  if (const int error = lock(fd, LOCK_EX)) give_up(fd, path, error);
  return FileLock(fd);
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace nibble
