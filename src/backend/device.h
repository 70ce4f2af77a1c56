// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/view.h"

namespace nibble {

/// Which implementation of an op runs. ref and cpu share host memory.
enum class BackendKind { Ref, Cpu, Cuda };

std::string_view name_of(BackendKind kind);
/// "ref", "cpu" or "cuda"; throws Error{Usage} otherwise, or when this binary was built without it.
BackendKind backend_from_name(std::string_view name);

/// Where bytes live. The few verbs a machine must offer.
class Device {
 public:
  virtual ~Device() = default;
  /// 64-byte aligned, zeroed. Throws Error{Runtime} with the size when there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* p) noexcept = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* p, std::size_t bytes) = 0;
};

/// Ordinary memory.
class HostDevice final : public Device {
 public:
  void* allocate(std::size_t bytes) override;
  void free(void* p) noexcept override;
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void zero(void* p, std::size_t bytes) override;
};

/// Owned bytes on a device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_) device_->free(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A stack of tensors: what forward keeps for backward, and a kernel's scratch. Memory comes in chunks
/// that never move, and is reused after a rewind; once every step has the same shapes it allocates
/// nothing. Contents after take() are unspecified.
class Arena {
 public:
  explicit Arena(Device& device) : device_(&device) {}

  struct Mark {
    std::size_t chunk = 0, used = 0;
  };
  Mark mark() const { return {chunk_, used_}; }
  void rewind(Mark m) {
    chunk_ = m.chunk;
    used_ = m.used;
  }

  void* take_bytes(std::size_t bytes);
  template <class T, class... N>
  View<T> take(N... sizes) {
    const Layout l = Layout::contiguous(sizes...);
    return {static_cast<T*>(take_bytes(static_cast<std::size_t>(l.numel()) * sizeof(T))), l};
  }
  template <class... N>
  RealView take_real(DType dtype, N... sizes) {
    const Layout l = Layout::contiguous(sizes...);
    return {take_bytes(static_cast<std::size_t>(l.numel()) * size_of(dtype)), dtype, l};
  }
  /// Bytes of all chunks: the peak so far, rounded up to chunks.
  std::size_t reserved() const;

 private:
  Device* device_;
  std::vector<Buffer> chunks_;
  std::size_t chunk_ = 0, used_ = 0;
};

/// Gives back what was taken from an arena since.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

/// Where work is issued: a backend, its threads, and scratch memory for the duration of one op.
/// On the host an op is done when the call returns. One stream is used by one thread at a time; several
/// streams may live side by side.
class Stream {
 public:
  Stream(BackendKind kind, Device& device, int threads)
      : kind_(kind), device_(&device), pool_(kind == BackendKind::Cpu ? threads : 1), scratch_(device) {}
  BackendKind kind() const { return kind_; }
  Device& device() { return *device_; }
  ThreadPool& pool() { return pool_; }
  /// For ops: take inside an ArenaScope.
  Arena& scratch() { return scratch_; }

 private:
  BackendKind kind_;
  Device* device_;
  ThreadPool pool_;
  Arena scratch_;
};

}  // namespace nibble
