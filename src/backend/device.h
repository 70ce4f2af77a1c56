// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// Work that was recorded once and can be issued again with the same addresses and shapes.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

/// Where bytes live, and the order in which work on them happens: everything issued to one device happens in
/// the order of issue. The few verbs a machine must offer. On the host each is done when it returns.
class Device {
 public:
  virtual ~Device() = default;
  virtual BackendKind kind() const = 0;
  /// kDeviceAlignment-aligned, zeroed. Throws Error{Runtime} with the size when there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* p) noexcept = 0;
  /// Host memory that the device reads and writes without a copy; zeroed, same alignment.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(void* p) noexcept = 0;
  /// `from` may change once this returns, unless it came from allocate_host: then the copy happens in the
  /// order of issue and the caller waits for it (mark, wait) before it writes there again.
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) = 0;
  /// Waits until the bytes are there.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  /// Into memory of allocate_host, without waiting.
  virtual void send_to_host(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  ///< both on the device
  virtual void zero(void* p, std::size_t bytes) = 0;
  /// Bytes of the device's memory that are in use now, by whomever; 0 where that says nothing.
  virtual std::size_t bytes_in_use() const { return 0; }

  /// A point in the order of issue, and waiting until everything before it is done. Marks are numbers that
  /// grow; the last few can be waited for.
  virtual std::uint64_t mark() = 0;
  virtual void wait(std::uint64_t mark) = 0;
  void synchronize() { wait(mark()); }

  /// Records what `issue` issues instead of doing it. Null where a device cannot: then nothing was issued.
  /// Inside, memory may not be allocated and nobody may wait.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& issue) = 0;
};

inline constexpr std::size_t kDeviceAlignment = 256;

/// The device that a backend computes on; `ref` and `cpu` share ordinary memory. Throws Error{Runtime} when
/// there is no such device or its driver does not answer.
std::unique_ptr<Device> open_device(BackendKind kind);

/// One value of device memory.
template <class T>
T read(Device& device, const T* p) {
  T value;
  device.copy_to_host(&value, p, sizeof(T));
  return value;
}

/// The elements of a contiguous view of device memory, and the way back.
template <class T>
std::vector<std::remove_const_t<T>> on_host(Device& device, View<T> view) {
  std::vector<std::remove_const_t<T>> values(static_cast<std::size_t>(view.numel()));
  device.copy_to_host(values.data(), view.data(), values.size() * sizeof(T));
  return values;
}
template <class T>
void to_device(Device& device, View<T> to, const std::vector<T>& values) {
  device.copy_from_host(to.data(), values.data(), values.size() * sizeof(T));
}

/// Ordinary memory.
class HostDevice final : public Device {
 public:
  BackendKind kind() const override { return BackendKind::Cpu; }
  void* allocate(std::size_t bytes) override;
  void free(void* p) noexcept override;
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void free_host(void* p) noexcept override { free(p); }
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void send_to_host(void* to, const void* from, std::size_t bytes) override { copy_to_host(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { copy_to_host(to, from, bytes); }
  void zero(void* p, std::size_t bytes) override;
  std::uint64_t mark() override { return 0; }
  void wait(std::uint64_t) override {}
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
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

/// Owned host memory that a device reads and writes without a copy.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device& device, std::size_t bytes) : device_(&device), data_(device.allocate_host(bytes)) {}
  HostBuffer(HostBuffer&& o) noexcept { *this = std::move(o); }
  HostBuffer& operator=(HostBuffer&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    return *this;
  }
  ~HostBuffer() {
    if (data_) device_->free_host(data_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
};

/// A stack of tensors: what forward keeps for backward, and a kernel's scratch. Memory comes in chunks
/// that never move, and is reused after a rewind; once every step has the same shapes it allocates
/// nothing. Contents after take() are unspecified.
class Arena {
 public:
  explicit Arena(Device& device) : device_(&device) {}

  struct Mark {
    std::size_t chunk = 0, used = 0, live = 0;
  };
  Mark mark() const { return {chunk_, used_, live_}; }
  void rewind(Mark m) {
    chunk_ = m.chunk;
    used_ = m.used;
    live_ = m.live;
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
  /// Bytes of all chunks: the peak so far, and what did not fit into the rests of chunks.
  std::size_t reserved() const;
  /// Makes one chunk, as large as the peak so far, of all: the plan of memory that a first step has found.
  /// Nothing may be taken; addresses change.
  void settle();

 private:
  Device* device_;
  std::vector<Buffer> chunks_;
  std::size_t chunk_ = 0, used_ = 0;
  std::size_t live_ = 0, peak_ = 0;  ///< bytes taken now, and at most
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
