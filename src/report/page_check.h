// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

/// What the tests of pages share.
namespace nibble::fixture {

/// Where pages are left for looking at: NIBBLE_REPORT_DIR, or a temporary folder.
inline std::filesystem::path page_folder() {
  const char* wanted = std::getenv("NIBBLE_REPORT_DIR");
  std::filesystem::path dir = wanted != nullptr ? std::filesystem::path(wanted)
                                                : std::filesystem::path(::testing::TempDir()) /
                                                      ("nibble_report_" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  return dir;
}

/// Whether every tag that is opened is closed, in order.
inline std::string unbalanced_tag(const std::string& html) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while ((at = html.find('<', at)) != std::string::npos) {
    const auto end = html.find('>', at);
    if (end == std::string::npos) return html.substr(at, 40);
    std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with('!') || tag.ends_with('/') || tag.starts_with("meta")) continue;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" >", 1) - (tag[0] == '/'));
    if (tag[0] != '/') {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

}  // namespace nibble::fixture
