// SPDX-License-Identifier: Apache-2.0
#include "backend/device.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Arena, ReusesMemoryAfterARewindAndNeverMovesWhatIsHeld) {
  HostDevice host;
  Arena arena(host);
  const View<float> kept = arena.take<float>(1000);
  kept(999) = 7;
  const Arena::Mark mark = arena.mark();
  const View<float> first = arena.take<float>(5 << 20);
  const std::size_t reserved = arena.reserved();
  arena.rewind(mark);
  EXPECT_EQ(arena.take<float>(5 << 20).data(), first.data());
  EXPECT_EQ(arena.reserved(), reserved);
  EXPECT_EQ(kept(999), 7);
}

TEST(View, SlicesAndTransposesWithoutMovingData) {
  float x[12];
  for (int i = 0; i < 12; ++i) x[i] = static_cast<float>(i);
  const View<float> v(x, 3, 4);
  EXPECT_EQ(v.slice(1, 1, 2)(2, 0), 9);
  EXPECT_EQ(v.transposed()(3, 1), 7);
  EXPECT_EQ(v.split_last(2, 2)(1, 1, 0), 6);
  const RealView r = v;
  r.cols(2, 2).set(-1, 0, 1);
  EXPECT_EQ(x[3], -1);
  EXPECT_FALSE(r.cols(2, 2).is_contiguous());
}

}  // namespace
}  // namespace nibble
