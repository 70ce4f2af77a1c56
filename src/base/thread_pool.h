// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace nibble {

/// A fixed set of threads that work through numbered tiles.
///
/// The tiles of a job are the same for every number of threads; only who runs a tile changes. A kernel
/// that reduces writes one partial result a tile and adds them in tile order, so results do not depend
/// on the thread count.
class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread. 0 means one a hardware thread.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls tile(i) once for each i in [0, tiles), from several threads, and returns when all are done.
  /// The first exception a tile throws is rethrown here. Not reentrant: a tile may not call parallel_for.
  void parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& tile);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
