// SPDX-License-Identifier: Apache-2.0
#include "backend/host_vector.h"

#include <gtest/gtest.h>

#include <map>

namespace nibble {
namespace {

/// Knows what it gave out as host memory, and takes back nothing else.
class CountingDevice final : public Device {
 public:
  BackendKind kind() const override { return BackendKind::Cpu; }
  void* allocate(std::size_t bytes) override { return host_.allocate(bytes); }
  void free(void* p) noexcept override { host_.free(p); }
  void* allocate_host(std::size_t bytes) override {
    void* p = host_.allocate_host(bytes);
    held_[p] = bytes;
    return p;
  }
  void free_host(void* p) noexcept override {
    strangers_ += held_.erase(p) == 0 ? 1 : 0;
    host_.free_host(p);
  }
  void copy_from_host(void* to, const void* from, std::size_t n) override {
    host_.copy_from_host(to, from, n);
  }
  void copy_to_host(void* to, const void* from, std::size_t n) override { host_.copy_to_host(to, from, n); }
  void send_to_host(void* to, const void* from, std::size_t n) override { host_.send_to_host(to, from, n); }
  void copy(void* to, const void* from, std::size_t n) override { host_.copy(to, from, n); }
  void zero(void* p, std::size_t bytes) override { host_.zero(p, bytes); }
  std::uint64_t mark() override { return 0; }
  void wait(std::uint64_t) override {}
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }

  bool holds(const void* p, std::size_t bytes) const {
    const auto it = held_.find(const_cast<void*>(p));
    return it != held_.end() && it->second >= bytes;
  }
  std::size_t held() const { return held_.size(); }
  int strangers() const { return strangers_; }

 private:
  HostDevice host_;
  std::map<void*, std::size_t> held_;
  int strangers_ = 0;
};

TEST(HostVector, LiesInTheDevicesHostMemoryAndGivesItBack) {
  CountingDevice device;
  {
    HostVector<float> x(1000, device);
    EXPECT_TRUE(device.holds(x.data(), 4000));
    EXPECT_EQ(x[999], 0);
    x.resize(5000);
    EXPECT_TRUE(device.holds(x.data(), 20000));
    HostVector<float> grown(device);
    for (int i = 0; i < 100; ++i) grown.push_back(static_cast<float>(i));
    EXPECT_TRUE(device.holds(grown.data(), 400));
    EXPECT_EQ(grown[99], 99);
  }
  EXPECT_EQ(device.held(), 0u);
  EXPECT_EQ(device.strangers(), 0);
}

TEST(HostVector, MovesAndSwapsBetweenDevicesTakeTheMemoryAlongAndCopiesStay) {
  CountingDevice one, other;
  {
    HostVector<int> a(3, 7, one), b(2, 8, other), c(1, 9, other);
    const int* memory = a.data();
    c = a;
    EXPECT_TRUE(other.holds(c.data(), 12));
    EXPECT_EQ(c, a);
    b = std::move(a);
    EXPECT_EQ(b.data(), memory);
    EXPECT_TRUE(one.holds(b.data(), 12));
    std::swap(b, c);
    EXPECT_EQ(c.data(), memory);
  }
  EXPECT_EQ(one.held() + other.held(), 0u);
  EXPECT_EQ(one.strangers() + other.strangers(), 0);
}

}  // namespace
}  // namespace nibble
