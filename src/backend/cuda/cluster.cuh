// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/kernel.cuh"

/// Clusters: neighbouring blocks that run at the same time and write into each other's shared memory [PTX],
/// on cards of compute capability 9.0 and up. Elsewhere a kernel for clusters compiles, and clusters_at_once
/// is 0. Any card with clusters takes up to eight blocks in one.
namespace nibble::cuda {

/// What the runtime is told about a launch in clusters.
class ClusterLaunch {
 public:
  ClusterLaunch(Stream& stream, unsigned clusters, unsigned size, dim3 block, std::size_t shared_bytes) {
    attribute_.id = cudaLaunchAttributeClusterDimension;
    attribute_.val.clusterDim.x = size;
    attribute_.val.clusterDim.y = attribute_.val.clusterDim.z = 1;
    config_.gridDim = dim3(clusters * size);
    config_.blockDim = block;
    config_.dynamicSmemBytes = shared_bytes;
    config_.stream = cuda_device(stream).stream();
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchAttribute attribute_{};
  cudaLaunchConfig_t config_{};
};

/// How many clusters of `size` blocks the stream's GPU holds at once: by CUDA's count, which it does not
/// promise to reach.
template <class... Params>
int clusters_at_once(Stream& stream, std::string_view what, void (*kernel)(Params...), unsigned size,
                     dim3 block, std::size_t shared_bytes) {
  if (cuda_device(stream).compute_capability() < 90) return 0;
  allow_shared_bytes(what, kernel, shared_bytes);
  const ClusterLaunch one(stream, 1, size, block, shared_bytes);
  int count = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&count, kernel, one.config()), what);
  return count;
}

/// As launch, with `clusters` clusters of `size` blocks: block i is number i % size of cluster i / size.
template <class... Params, class... Args>
void launch_clusters(Stream& stream, std::string_view what, void (*kernel)(Params...), unsigned clusters,
                     unsigned size, dim3 block, std::size_t shared_bytes, Args&&... args) {
  if (clusters == 0) return;
  allow_shared_bytes(what, kernel, shared_bytes);
  const ClusterLaunch all(stream, clusters, size, block, shared_bytes);
  cuda_check(cudaLaunchKernelEx(all.config(), kernel, static_cast<Params>(std::forward<Args>(args))...),
             what);
}

/// For all threads of all blocks of a cluster. What was written before is seen after it, in every block's
/// shared memory.
__device__ __forceinline__ void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __syncwarp();  // the instructions are for whole warps
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// What the blocks of a cluster send one another, counted in bytes where it arrives [PTX, mbarrier]: a phase
/// ends when `expect` was called once for it and all the bytes that it named are there, and the next one
/// begins. Lies in shared memory. Bytes may come before `expect`, but none of the phase after.
class Inbox {
 public:
  /// By one thread; a cluster_barrier must follow before anything is sent.
  __device__ __forceinline__ void init() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at()) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  /// By one thread, once a phase.
  __device__ __forceinline__ void expect(std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
#endif
  }
  /// Until phase number `phase` has ended. Whoever waits sees all that was sent in it.
  __device__ __forceinline__ void wait(std::uint32_t phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t"
        ".reg .pred ended;\n\t"
        "AGAIN:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t"
        "@!ended bra AGAIN;\n\t"
        "}" ::"r"(at()),
        "r"(phase & 1)
        : "memory");
#endif
  }
  /// Sends two numbers to block `number` of this cluster: there they come to where this block has `own`,
  /// aligned to 8 bytes in shared memory, and are counted in the inbox that lies where this one does. That
  /// block has begun (a cluster_barrier before) and not ended (one after).
  __device__ __forceinline__ void send(const void* own, unsigned number, float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t"
        ".reg .b32 to, inbox;\n\t"
        "mapa.shared::cluster.u32 to, %0, %2;\n\t"
        "mapa.shared::cluster.u32 inbox, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [inbox];\n\t"
        "}" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(own))),
        "r"(at()), "r"(number), "f"(first), "f"(second)
        : "memory");
#endif
  }

 private:
  __device__ __forceinline__ std::uint32_t at() const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(&state_));
  }
  std::uint64_t state_;
};

}  // namespace nibble::cuda
