// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/device.h"

namespace nibble::cpu {

/// Scratch memory for the tiles of a parallel loop: as many pieces as there are threads, each used by one
/// tile at a time, so that it stays in the cache of the core that runs it. A tile must write what it reads.
class ScratchSlots {
 public:
  /// Takes the memory from the stream's scratch: construct it inside an ArenaScope.
  ScratchSlots(Stream& stream, std::int64_t floats)
      : count_(stream.pool().threads()), busy_(std::make_unique<std::atomic<bool>[]>(count_)) {
    // Pieces are rounded to the line of a cache, so that two threads never write to the same one.
    stride_ = (floats + 15) / 16 * 16;
    memory_ = stream.scratch().take<float>(stride_ * count_).data();
  }

  /// One piece, for the lifetime of this object.
  class Lease {
   public:
    explicit Lease(ScratchSlots& slots) : slots_(slots), slot_(slots.acquire()) {}
    ~Lease() { slots_.busy_[slot_].store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* data() const { return slots_.memory_ + slot_ * slots_.stride_; }

   private:
    ScratchSlots& slots_;
    int slot_;
  };

 private:
  int acquire() {
    // There are as many slots as threads, so a free one is found in the first round or soon after.
    for (int i = 0;; i = (i + 1) % count_)
      if (!busy_[i].exchange(true, std::memory_order_acquire)) return i;
  }

  int count_;
  std::unique_ptr<std::atomic<bool>[]> busy_;
  std::int64_t stride_ = 0;
  float* memory_ = nullptr;
};

/// Cuts a lease into tiles; counting with a null pointer first tells how much a lease must hold.
class ScratchCutter {
 public:
  explicit ScratchCutter(float* base) : base_(base) {}
  float* take(std::int64_t floats) {
    float* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (floats + 15) / 16 * 16;
    return p;
  }
  std::int64_t used() const { return used_; }

 private:
  float* base_;
  std::int64_t used_ = 0;
};

}  // namespace nibble::cpu
