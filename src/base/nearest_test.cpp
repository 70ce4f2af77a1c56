// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("steps", "steps"), 0);
  EXPECT_EQ(edit_distance("step", "steps"), 1);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(NearestNames, NearestComesFirstAndStrangersAreLeftOut) {
  const std::vector<std::string> names = {"recipe", "receipt", "rotation"};
  EXPECT_EQ(nearest_names("recpie", names), (std::vector<std::string>{"recipe", "receipt"}));
  EXPECT_TRUE(nearest_names("zzzzzz", names).empty());
}

TEST(DidYouMean, EndsASentence) {
  EXPECT_EQ(did_you_mean("stepss", {"steps"}), "; did you mean \"steps\"?");
  EXPECT_EQ(did_you_mean("zzzzzz", {"steps"}), ".");
}

}  // namespace
}  // namespace nibble
