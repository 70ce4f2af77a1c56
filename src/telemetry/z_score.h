// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>

namespace nibble {

/// How unusual a value is beside the last 128: (value - mean) / sd of the window BEFORE it joins.
/// Nothing while fewer than 16 values are known, or where they do not differ. A non-finite value gets no
/// score and does not enter the window, so one NaN does not blind the next 128 steps.
class ZScore {
 public:
  explicit ZScore(int window = 128) : window_(window) {}
  std::optional<double> push(double value);

 private:
  std::size_t window_;
  std::deque<double> values_;
};

}  // namespace nibble
