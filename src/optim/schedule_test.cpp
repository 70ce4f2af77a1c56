// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace nibble {
namespace {

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  const Schedule s{.kind = ScheduleKind::Wsd, .peak = 2, .steps = 100, .warmup_steps = 10};
  EXPECT_DOUBLE_EQ(s.at(0), 0.2);
  EXPECT_DOUBLE_EQ(s.at(9), 2);
}

TEST(Schedule, WsdStaysAtThePeakAndEndsAtTheFinalRatio) {
  const Schedule s{.kind = ScheduleKind::Wsd, .peak = 1, .steps = 100, .warmup_steps = 10};
  EXPECT_EQ(s.decay_start(), 80);
  EXPECT_DOUBLE_EQ(s.at(79), 1);
  EXPECT_DOUBLE_EQ(s.at(89), 0.505);
  EXPECT_DOUBLE_EQ(s.at(99), 0.01);
}

TEST(Schedule, EveryKindNeverRisesAfterWarmUpAndEndsWhereItSays) {
  for (ScheduleKind k :
       {ScheduleKind::Wsd, ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Constant}) {
    const Schedule s{.kind = k, .peak = 3e-3, .steps = 57, .warmup_steps = 5, .final_ratio = 0.1};
    for (int i = 5; i < 57; ++i) EXPECT_LE(s.at(i), s.at(i - 1)) << name_of(k) << " step " << i;
    EXPECT_NEAR(s.at(56), k == ScheduleKind::Constant ? 3e-3 : 3e-4, 1e-15) << name_of(k);
  }
}

TEST(Schedule, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THROW(schedule_from_name("step"), Error);
  EXPECT_EQ(schedule_from_name("cosine"), ScheduleKind::Cosine);
}

}  // namespace
}  // namespace nibble
