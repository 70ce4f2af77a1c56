// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace nibble {

/// An empty directory for one test, removed at the end of its scope. Used by tests only.
class TestDir {
 public:
  TestDir() {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_test_XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
    path_ = name;
  }
  ~TestDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Changes one bit of a file in place. (Rewriting the file whole would make the file system flush each time.)
inline void flip_bit(const std::filesystem::path& path, std::size_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(bit / 8);
  const int old = file.seekg(at).get();
  file.seekp(at).put(static_cast<char>(old ^ (1 << bit % 8)));
  check(file.good(), "cannot change {}", path.string());
}

/// The text of the Error that `action` throws, or "" when it throws none.
template <class F>
std::string error_of(F action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace nibble
