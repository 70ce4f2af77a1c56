// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable start, done;
  std::vector<std::thread> workers;
  const std::function<void(std::int64_t)>* tile = nullptr;
  std::int64_t tiles = 0;
  std::atomic<std::int64_t> next{0};
  std::uint64_t job = 0;
  int busy = 0;
  bool stop = false;
  std::exception_ptr error;

  void work() {
    try {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) (*tile)(i);
    } catch (...) {
      next.store(tiles, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void loop() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      start.wait(lock, [&] { return stop || job != seen; });
      if (stop) return;
      seen = job;
      lock.unlock();
      work();
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([this] { impl_->loop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->start.notify_all();
  for (auto& w : impl_->workers) w.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t tiles, const std::function<void(std::int64_t)>& tile) {
  if (tiles <= 0) return;
  if (tiles == 1 || impl_->workers.empty()) {
    for (std::int64_t i = 0; i < tiles; ++i) tile(i);
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->tile = &tile;
    impl_->tiles = tiles;
    impl_->next.store(0, std::memory_order_relaxed);
    impl_->busy = static_cast<int>(impl_->workers.size());
    impl_->error = nullptr;
    ++impl_->job;
  }
  impl_->start.notify_all();
  impl_->work();
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->busy == 0; });
  if (impl_->error) std::rethrow_exception(impl_->error);
}

}  // namespace nibble
