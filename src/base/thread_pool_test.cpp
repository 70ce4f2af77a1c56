// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace nibble {
namespace {

TEST(ThreadPool, RunsEveryTileOnceForAnyNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int tiles : {0, 1, 2, 1000}) {
      std::vector<int> runs(tiles, 0);
      pool.parallel_for(tiles, [&](std::int64_t i) { ++runs[i]; });
      EXPECT_EQ(runs, std::vector<int>(tiles, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, RethrowsWhatATileThrowsAndGoesOnWorking) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(50, [](std::int64_t i) { check(i != 7, "tile {}", i); }), Error);
  int sum = 0;
  pool.parallel_for(1, [&](std::int64_t) { sum = 1; });
  EXPECT_EQ(sum, 1);
}

}  // namespace
}  // namespace nibble
