// SPDX-License-Identifier: Apache-2.0
#include "ops/all_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace nibble {
namespace {

/// "rms_norm" and "RmsNorm" alike.
std::string plain(std::string_view name) {
  std::string out;
  for (char c : name)
    if (c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Whether there is a test TEST(...Conformance, op), or a suite called OpConformance.
bool has_cases(std::string_view op) {
  const auto& tests = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(s);
    if (plain(suite.name()) == plain(op) + "conformance") return true;
    if (!std::string_view(suite.name()).ends_with("Conformance")) continue;
    for (int t = 0; t < suite.total_test_count(); ++t)
      if (plain(suite.GetTestInfo(t)->name()) == plain(op)) return true;
  }
  return false;
}

TEST(AllOps, EveryOpOnTheCpuHasAReferenceAndIsComparedWithIt) {
  for (const OpInfo& op : kAllOps) {
    EXPECT_TRUE(op.ref) << op.name << " has no reference";
    EXPECT_TRUE(!op.cpu || has_cases(op.name))
        << op.name << " is compared with its reference in no conformance test";
  }
}

TEST(AllOps, NamesAreUnique) {
  std::vector<std::string_view> names;
  for (const OpInfo& op : kAllOps) names.push_back(op.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace nibble
