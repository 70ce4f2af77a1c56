// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Least number of inserted, deleted and replaced characters, and swaps of neighbours, that turn `a` into
/// `b`.
int edit_distance(std::string_view a, std::string_view b);

/// Up to `most` of `names`, nearest to `wanted` first, for "did you mean" in errors. Empty when nothing is
/// near enough to be a misspelling (more than half of the wanted characters differ).
std::vector<std::string> nearest_names(std::string_view wanted, const std::vector<std::string>& names,
                                       std::size_t most = 3);

/// The end of a sentence about an unknown name: "; did you mean \"lr\" or \"eps\"?", or "." when none is
/// near.
std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& names,
                         std::size_t most = 3);

}  // namespace nibble
