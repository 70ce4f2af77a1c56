// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// Memory of Device::allocate_host for standard containers. The device must outlive them.
template <class T>
class HostAllocator {
 public:
  using value_type = T;
  // A container that is moved or swapped takes its memory along, and so must take the device.
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  // Not explicit: `HostVector<float> x(n, device)` reads as what it is.
  HostAllocator(Device& device) : device_(&device) {}
  template <class U>
  HostAllocator(const HostAllocator<U>& other) : device_(&other.device()) {}

  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= kDeviceAlignment);
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(device_->allocate_host(count * sizeof(T)));
  }
  void deallocate(T* p, std::size_t) noexcept { device_->free_host(p); }

  Device& device() const { return *device_; }
  friend bool operator==(const HostAllocator& a, const HostAllocator& b) { return a.device_ == b.device_; }

 private:
  Device* device_;
};

/// A vector that the host and the device both read and write: `HostVector<float> x(n, device)`. What an op
/// wrote into it is there after device.synchronize(); while an op may still use it the host leaves it alone.
/// A copy lies in memory of the same device.
template <class T>
using HostVector = std::vector<T, HostAllocator<T>>;

}  // namespace nibble
