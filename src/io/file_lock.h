// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace nibble {

/// A lock that processes of one machine hold on a file (flock). It goes when the object or the process does,
/// however that ends, so nothing is left to clean up; the empty file stays.
class FileLock {
 public:
  /// Makes the file if it is not there. try_to gives nothing when another holder has it. Throws Error naming
  /// the file when it cannot be made.
  static std::optional<FileLock> try_to(const std::filesystem::path& path);
  static FileLock wait_for(const std::filesystem::path& path);

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace nibble
