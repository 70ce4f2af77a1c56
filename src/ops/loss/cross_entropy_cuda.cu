// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/any_rows.cuh"
#include "ops/loss/cross_entropy.h"

/// A block has a row of logits at a time, and as much of it as fits in shared memory: 50304 columns fit on
/// Hopper and data-centre Blackwell. Each thread fills and reads its own places, so that no barrier stands
/// between the copy and the arithmetic; as soon as it has written the gradient of one place it asks for the
/// same place of the block's next row, which so arrives while this row is still being written.
///
/// Floor for a chunk of 512 tokens, V = 50304 and 4.2 TB/s, BF16 gradient: 6 bytes an element, 155 MB, 37 us
/// (16384 tokens: 1.18 ms); 8 bytes, 49 us with an FP32 gradient. One exponential an element: at sixteen a
/// cycle of a multiprocessor that is 15 us of the 37, in the shadow of the memory.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPack = 4;

struct Loss {
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  const std::int32_t* targets = nullptr;
  std::int64_t targets_stride = 1;
  float* loss = nullptr;
  AnyRows d;  ///< empty: no gradient
  std::int64_t T = 0;
  int V = 0, vocab = 0;
  float grad_scale = 1;
  int slots = 0;  ///< packs that a thread keeps in shared memory; it reads the others from memory again
};

__device__ __forceinline__ void copy_async(float4* to, const float* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// e^x for x <= 0. The product's rounding costs |x| units of the last place, where e^x is small by as much.
__device__ __forceinline__ float exp_below(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

/// The maximum; a NaN is found again by the exponentials.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

/// The four numbers of a pack whose first column is `column`, -infinity from `vocab` on.
__device__ __forceinline__ void mask(float4& x, int column, int vocab) {
  const float none = -__builtin_inff();
  if (column + 4 <= vocab) return;
  if (column >= vocab) x.x = none;
  if (column + 1 >= vocab) x.y = none;
  if (column + 2 >= vocab) x.z = none;
  if (column + 3 >= vocab) x.w = none;
}

/// All packs of four that belong to this thread: f(place in shared memory or null, column).
template <class F>
__device__ __forceinline__ void each_pack(const Loss& c, float4* row, F&& f) {
  int slot = 0;
  for (int column = static_cast<int>(threadIdx.x) * kPack; column < c.V; column += kThreads * kPack, ++slot)
    f(slot < c.slots ? row + slot * kThreads + threadIdx.x : nullptr, column);
}

template <class D>
__global__ void __launch_bounds__(kThreads, 1) cross_entropy_kernel(const Loss c) {
  extern __shared__ float4 row[];
  const auto logits_of = [&](std::int64_t t) { return c.logits + t * c.logits_stride; };
  const auto ask_for = [&](std::int64_t t) {
    each_pack(c, row, [&](float4* place, int column) {
      if (place != nullptr) copy_async(place, logits_of(t) + column);
    });
  };
  const bool gradient = !c.d.empty();
  std::int64_t t = blockIdx.x;
  if (t < c.T) ask_for(t);
  for (; t < c.T; t += gridDim.x) {
    const float* logits = logits_of(t);
    const int target = c.targets[t * c.targets_stride];
    const float at_target = target < 0 ? 0.0f : logits[target];
    const std::int64_t next = t + gridDim.x;
    const auto load = [&](const float4* place, int column) {
      float4 x = place != nullptr ? *place : *reinterpret_cast<const float4*>(logits + column);
      mask(x, column, c.vocab);
      return x;
    };

    wait_for_copies();
    float most = -__builtin_inff();
    each_pack(c, row, [&](float4* place, int column) {
      const float4 x = load(place, column);
      most = larger(larger(most, larger(x.x, x.y)), larger(x.z, x.w));
    });
    most = block_max<kThreads>(most);
    float sum = 0;
    each_pack(c, row, [&](float4* place, int column) {
      float4 e = load(place, column);
      e = {exp_below(e.x - most), exp_below(e.y - most), exp_below(e.z - most), exp_below(e.w - most)};
      sum += (e.x + e.y) + (e.z + e.w);
      if (place != nullptr) *place = e;
    });
    sum = block_sum<kThreads>(sum);
    // The difference first: it is small where the model is sure, and then the logarithm decides.
    if (threadIdx.x == 0) c.loss[t] = target < 0 ? 0.0f : logf(sum) + (most - at_target);

    const float factor = target < 0 ? 0.0f : c.grad_scale / sum;
    each_pack(c, row, [&](float4* place, int column) {
      if (gradient) {
        float4 e;
        if (place != nullptr) {
          e = *place;
        } else {
          e = load(nullptr, column);
          e = {exp_below(e.x - most), exp_below(e.y - most), exp_below(e.z - most), exp_below(e.w - most)};
        }
        float d[kPack] = {e.x * factor, e.y * factor, e.z * factor, e.w * factor};
        if (target < 0) {
#pragma unroll
          for (float& v : d) v = 0;  // also where the logits are not finite
        } else if (target >= column && target < column + kPack) {
          const float p = exp_below(at_target - most) / sum;
#pragma unroll
          for (int i = 0; i < kPack; ++i)
            if (column + i == target) d[i] = c.grad_scale * (p - 1.0f);
        }
        store_pack(c.d.template at<D>(t, column), d);
      }
      if (place != nullptr && next < c.T) copy_async(place, logits_of(next) + column);
    });
  }
}

constexpr int kAnyThreads = 256;

/// Any alignment, any number of columns: a row is read from memory three times.
__global__ void __launch_bounds__(kAnyThreads) any_cross_entropy_kernel(const Loss c) {
  const std::int64_t t = blockIdx.x;
  const float* logits = c.logits + t * c.logits_stride;
  const int target = c.targets[t * c.targets_stride];
  const float at_target = target < 0 ? 0.0f : logits[target];
  float most = -__builtin_inff();
  for (int v = static_cast<int>(threadIdx.x); v < c.vocab; v += kAnyThreads) most = larger(most, logits[v]);
  most = block_max<kAnyThreads>(most);
  float sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < c.vocab; v += kAnyThreads)
    sum += exp_below(logits[v] - most);
  sum = block_sum<kAnyThreads>(sum);
  if (threadIdx.x == 0) c.loss[t] = target < 0 ? 0.0f : logf(sum) + (most - at_target);
  if (c.d.empty()) return;
  for (int v = static_cast<int>(threadIdx.x); v < c.V; v += kAnyThreads) {
    float d = 0;
    if (target >= 0 && v < c.vocab) {
      const float e = exp_below(logits[v] - most);
      d = v == target ? c.grad_scale * (e / sum - 1.0f) : e * (c.grad_scale / sum);
    }
    c.d.set(t, v, d);
  }
}

/// What a GPU lends a block at most.
struct SharedMemory {
  explicit SharedMemory(CudaDevice&) {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "cross_entropy");
    cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cross_entropy");
  }
  int bytes = 0;
};

}  // namespace

void run(Stream& stream, const CrossEntropy& a) {
  constexpr std::string_view op = "cross_entropy";
  CudaDevice& device = cuda_device(stream);
  Loss c;
  c.logits = a.logits_TV.data();
  c.logits_stride = a.logits_TV.stride(0);
  c.targets = a.targets_T.data();
  c.targets_stride = a.targets_T.stride(0);
  c.loss = a.loss_T.data();
  c.T = a.logits_TV.size(0);
  c.V = static_cast<int>(a.logits_TV.size(1));
  c.vocab = a.vocab == 0 ? c.V : static_cast<int>(a.vocab);
  c.grad_scale = a.grad_scale;
  bool packs = in_packs<kPack>(ConstRealView(a.logits_TV), c.V);
  if (!a.dlogits_TV.empty()) {
    c.d = a.dlogits_TV;
    packs = packs && in_packs<kPack>(a.dlogits_TV, c.V);
  }
  if (!packs) {
    launch(stream, op, any_cross_entropy_kernel, dim3(static_cast<unsigned>(c.T)), dim3(kAnyThreads), 0, c);
    return;
  }
  constexpr int kSlotBytes = kThreads * static_cast<int>(sizeof(float4)),
                kOwn = 1024;  // kOwn: the sums' places
  const int needed = (c.V + kThreads * kPack - 1) / (kThreads * kPack);
  c.slots = std::min(needed, (device.attached<SharedMemory>().bytes - kOwn) / kSlotBytes);
  const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(c.T, device.multiprocessors()));
  const std::size_t bytes = static_cast<std::size_t>(c.slots) * kSlotBytes;
  launch(stream, op, c.d.is_bf16 ? cross_entropy_kernel<bf16> : cross_entropy_kernel<float>, dim3(blocks),
         dim3(kThreads), bytes, c);
}

}  // namespace nibble::cuda
