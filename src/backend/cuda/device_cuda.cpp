// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_device.h"
#include "base/error.h"

namespace nibble {

void cuda_check(cudaError_t status, std::string_view what) {
  check(status == cudaSuccess, "{}: CUDA says: {} ({})", what, cudaGetErrorString(status),
        cudaGetErrorName(status));
}

namespace {

class CudaRecording final : public Recording {
 public:
  CudaRecording(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(status, "making a graph of the training step");
  }
  ~CudaRecording() override { cudaGraphExecDestroy(exec_); }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;
  void replay() override { cuda_check(cudaGraphLaunch(exec_, stream_), "replaying the training step"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  check(status == cudaSuccess && count > 0,
        "there is no GPU to compute on ({}); check nvidia-smi, or use --backend cpu",
        status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  check(ordinal < count, "GPU {} was asked for, but there are {}", ordinal, count);
  cuda_check(cudaSetDevice(ordinal), "choosing a GPU");
  cuda_check(cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, ordinal), "asking a GPU");
  cuda_check(cudaDeviceGetAttribute(&minor_, cudaDevAttrComputeCapabilityMinor, ordinal), "asking a GPU");
  cuda_check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal),
             "asking a GPU");
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  for (cudaEvent_t& e : events_)
    cuda_check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "making an event");
}

CudaDevice::~CudaDevice() {
  cudaStreamSynchronize(stream_);
  attached_.clear();
  for (cudaEvent_t e : events_) cudaEventDestroy(e);
  cudaStreamDestroy(stream_);
}

void* CudaDevice::allocate(std::size_t bytes) {
  check(!recording_, "{} bytes were asked for while a step is recorded; all memory must be there before",
        bytes);
  bytes = std::max<std::size_t>(bytes, 1);
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    fail(
        "the GPU has no {} MiB left: {} of {} MiB are free; use a smaller training.micro_batch, a higher "
        "training.recompute, or a smaller model",
        bytes >> 20, free_bytes >> 20, total >> 20);
  }
  cuda_check(status, "allocating memory of the GPU");
  sizes_[p] = bytes;
  allocated_ += bytes;
  zero(p, bytes);
  return p;
}

void CudaDevice::free(void* p) noexcept {
  cudaStreamSynchronize(stream_);
  const auto it = sizes_.find(p);
  if (it != sizes_.end()) {
    allocated_ -= it->second;
    sizes_.erase(it);
  }
  cudaFree(p);
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  void* p = nullptr;
  bytes = std::max<std::size_t>(bytes, 1);
  cuda_check(cudaHostAlloc(&p, bytes, cudaHostAllocDefault), "allocating host memory that the GPU can read");
  std::memset(p, 0, bytes);
  return p;
}
void CudaDevice::free_host(void* p) noexcept {
  cudaStreamSynchronize(stream_);
  cudaFreeHost(p);
}

void CudaDevice::copy_from_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying to the GPU");
}

void CudaDevice::copy_to_host(void* to, const void* from, std::size_t bytes) {
  send_to_host(to, from, bytes);
  cuda_check(cudaStreamSynchronize(stream_), "waiting for the GPU");
}

void CudaDevice::send_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying from the GPU");
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying on the GPU");
}

void CudaDevice::zero(void* p, std::size_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemsetAsync(p, 0, bytes, stream_), "zeroing memory of the GPU");
}

std::size_t CudaDevice::bytes_in_use() const {
  std::size_t free_bytes = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total), "asking for the GPU's memory");
  return total - free_bytes;
}

std::uint64_t CudaDevice::mark() {
  cuda_check(cudaEventRecord(events_[marks_ % kMarks], stream_), "marking a point of the stream");
  return marks_++;
}

void CudaDevice::wait(std::uint64_t mark) {
  check(mark < marks_ && mark + kMarks >= marks_, "mark {} is too old to wait for", mark);
  cuda_check(cudaEventSynchronize(events_[mark % kMarks]), "waiting for the GPU");
}

std::unique_ptr<Recording> CudaDevice::record(const std::function<void()>& issue) {
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
  recording_ = true;
  try {
    issue();
  } catch (...) {
    recording_ = false;
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  recording_ = false;
  cuda_check(cudaStreamEndCapture(stream_, &graph), "recording a step");
  return std::make_unique<CudaRecording>(graph, stream_);
}

std::unique_ptr<Device> open_cuda_device() { return std::make_unique<CudaDevice>(); }

}  // namespace nibble
