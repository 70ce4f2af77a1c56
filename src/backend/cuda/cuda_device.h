// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <typeindex>

#include "backend/device.h"

namespace nibble {

/// Throws Error{Runtime} naming `what` and what CUDA says.
void cuda_check(cudaError_t status, std::string_view what);

/// One GPU with one CUDA stream: every kernel, copy and library call of this device goes there, in order.
///
/// Ops read and write only device memory or memory of allocate_host. What an op must keep between calls
/// (library handles, plans that were timed) is attached to the device: there is no global state, and it dies
/// with the device.
class CudaDevice final : public Device {
 public:
  /// Throws Error{Runtime} when there is no such GPU or the driver is too old, with the remedy.
  explicit CudaDevice(int ordinal = 0);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  BackendKind kind() const override { return BackendKind::Cuda; }
  void* allocate(std::size_t bytes) override;
  void free(void* p) noexcept override;
  void* allocate_host(std::size_t bytes) override;
  void free_host(void* p) noexcept override;
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void send_to_host(void* to, const void* from, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* p, std::size_t bytes) override;
  std::size_t bytes_in_use() const override;
  std::uint64_t mark() override;
  void wait(std::uint64_t mark) override;
  std::unique_ptr<Recording> record(const std::function<void()>& issue) override;

  cudaStream_t stream() const { return stream_; }
  /// 90 for Hopper, 100 and 103 for data-centre Blackwell, 120 for GeForce Blackwell.
  int compute_capability() const { return 10 * major_ + minor_; }
  int multiprocessors() const { return multiprocessors_; }
  std::size_t allocated() const { return allocated_; }  ///< bytes of device memory now
  bool recording() const { return recording_; }

  /// The T that belongs to this device, made from `*this` at the first call.
  template <class T>
  T& attached() {
    std::shared_ptr<void>& slot = attached_[typeid(T)];
    if (!slot) slot = std::make_shared<T>(*this);
    return *static_cast<T*>(slot.get());
  }

 private:
  static constexpr std::uint64_t kMarks = 8;

  int ordinal_ = 0, major_ = 0, minor_ = 0, multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kMarks> events_{};
  std::uint64_t marks_ = 0;
  std::size_t allocated_ = 0;
  std::map<void*, std::size_t> sizes_;
  bool recording_ = false;
  std::map<std::type_index, std::shared_ptr<void>> attached_;
};

std::unique_ptr<Device> open_cuda_device();

/// The device of a stream of kind Cuda.
inline CudaDevice& cuda_device(Stream& stream) { return static_cast<CudaDevice&>(stream.device()); }

}  // namespace nibble
