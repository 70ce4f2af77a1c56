// SPDX-License-Identifier: Apache-2.0
#include "backend/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace nibble {

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
  if (name == "cuda") fail_usage("backend \"cuda\": this binary was built without it; use --backend cpu");
  fail_usage("backend \"{}\" is not one of ref, cpu, cuda", name);
}

void* HostDevice::allocate(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, rounded);
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
  const std::size_t need = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
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
  return p;
}

std::size_t Arena::reserved() const {
  std::size_t n = 0;
  for (const Buffer& c : chunks_) n += c.bytes();
  return n;
}

}  // namespace nibble
