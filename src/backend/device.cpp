// SPDX-License-Identifier: Apache-2.0
#include "backend/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

#ifdef NIBBLE_WITH_CUDA
#include "backend/cuda/cuda_device.h"
#endif

namespace nibble {
namespace {

#ifdef NIBBLE_WITH_CUDA
constexpr bool kBuiltWithCuda = true;
#else
constexpr bool kBuiltWithCuda = false;
#endif

std::size_t round_up(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

}  // namespace

std::string_view name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::Ref:
      return "ref";
    case BackendKind::Cpu:
      return "cpu";
    case BackendKind::Cuda:
      return "cuda";
  }
  return "?";
}

BackendKind backend_from_name(std::string_view name) {
  if (name == "ref") return BackendKind::Ref;
  if (name == "cpu") return BackendKind::Cpu;
  if (name == "cuda") {
    if (!kBuiltWithCuda)
      fail_usage(
          "backend \"cuda\": this binary was built without it; configure with -DNIBBLE_CUDA=ON, or use "
          "--backend cpu");
    return BackendKind::Cuda;
  }
  fail_usage("backend \"{}\" is not one of ref, cpu, cuda", name);
}

std::unique_ptr<Device> open_device(BackendKind kind) {
  if (kind != BackendKind::Cuda) return std::make_unique<HostDevice>();
#ifdef NIBBLE_WITH_CUDA
  return open_cuda_device();
#else
  fail("backend \"cuda\": this binary was built without it");
#endif
}

void* HostDevice::allocate(std::size_t bytes) {
  const std::size_t rounded = round_up(bytes);
  void* p = std::aligned_alloc(kDeviceAlignment, rounded);
  check(p != nullptr, "cannot allocate {} bytes of memory; use a smaller model or micro-batch", bytes);
  std::memset(p, 0, rounded);
  return p;
}
void HostDevice::free(void* p) noexcept { std::free(p); }
void HostDevice::copy_from_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void HostDevice::copy_to_host(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void HostDevice::zero(void* p, std::size_t bytes) { std::memset(p, 0, bytes); }

void* Arena::take_bytes(std::size_t bytes) {
  constexpr std::size_t kChunk = std::size_t{8} << 20;
  const std::size_t need = round_up(bytes);
  while (chunk_ < chunks_.size() && used_ + need > chunks_[chunk_].bytes()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.emplace_back(*device_, std::max(need, kChunk));
    used_ = 0;
  }
  void* p = chunks_[chunk_].as<char>() + used_;
  used_ += need;
  live_ += need;
  peak_ = std::max(peak_, live_);
  return p;
}

void Arena::settle() {
  check(live_ == 0, "an arena with {} bytes taken cannot settle", live_);
  if (chunks_.size() <= 1) return;
  chunks_.clear();
  chunks_.emplace_back(*device_, peak_);
  chunk_ = used_ = 0;
}

std::size_t Arena::reserved() const {
  std::size_t n = 0;
  for (const Buffer& c : chunks_) n += c.bytes();
  return n;
}

}  // namespace nibble
