// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <type_traits>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// Memory of the backend for the sums of observed steps, sent to the host without waiting.
///
/// Within a step take() hands out zeros; send() issues the copy to the host and clears the memory for the
/// next step, in the device's order; drop_oldest() ends the oldest step sent. A step's sums may be read from
/// host() once the caller has waited for the step. Chunks never move.
class StepSums {
 public:
  struct Place {
    std::size_t chunk = 0, offset = 0;
  };

  explicit StepSums(Device& device) : device_(&device) {}

  template <class T>
  Place take() {
    static_assert(std::is_trivially_copyable_v<T>);
    return take_bytes(sizeof(T));
  }
  template <class T>
  T* at(Place p) const {
    return reinterpret_cast<T*>(chunks_[p.chunk].as<std::byte>() + p.offset);
  }

  void send();
  /// Of the oldest step that was sent and not dropped.
  template <class T>
  const T& host(Place p) const {
    return *reinterpret_cast<const T*>(sent_.front()[p.chunk].template as<std::byte>() + p.offset);
  }
  void drop_oldest();
  std::size_t sent() const { return sent_.size(); }

 private:
  using HostChunks = std::vector<HostBuffer>;
  Place take_bytes(std::size_t bytes);

  Device* device_;
  std::vector<Buffer> chunks_;
  std::size_t used_chunks_ = 0, used_ = 0;  ///< chunks begun in this step, bytes of the last of them
  std::deque<HostChunks> sent_;
  std::vector<HostChunks> spare_;  ///< host memory to be used again
};

}  // namespace nibble
