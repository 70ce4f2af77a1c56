// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/any_rows.cuh"
#include "ops/loss/cross_entropy.h"

/// A multiprocessor has one block, which goes through its rows in order, and each thread through its own
/// packs of four columns. The logits come by asynchronous copies into a ring in shared memory, a whole ring
/// ahead and across the ends of rows: whatever the block does with a row, the next one is arriving. As every
/// thread fills and reads places of its own, no barrier stands between copy and arithmetic; there is one a
/// row, in the sum. What leaves the ring stays on the chip until the gradient is written: twelve packs a
/// thread in registers, up to eight more in the rest of the shared memory, in all 51200 columns on Hopper and
/// data-centre Blackwell. Columns beyond that go through the ring a second time. Without a gradient every
/// logit is read once.
///
/// Floor for V = 50304, 4096 tokens and a BF16 gradient: 6 bytes an element, 1.24 GB, 300 us at 4.1 TB/s; 9.7
/// us a row on each of 132 multiprocessors. To keep that rate at 800 ns latency, 25 KB must be on their way
/// to each of them. The ring is 120 KB: beyond these 25 KB it takes 4.5 us of arriving logits (21 KB/us)
/// before they wait for the block, whose longest time away from the ring is the reduction and the gradient,
/// some 2 us. Arithmetic: 1.4 exponentials an element, 2.5 us a row at sixteen a cycle; some 14 instructions
/// an element, 3.3 us a row at four warps' a cycle.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 640;
constexpr int kPack = 4;
constexpr int kStep = kThreads * kPack;  ///< columns from one pack of a thread to its next
constexpr int kGroup = 4;                ///< packs that a thread asks for and takes together
constexpr int kHeld = 3;                 ///< groups of a row that a thread has in registers
/// Below every logit but -infinity, from which it can be subtracted.
constexpr float kLowest = -3.402823466e38f;

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
  int groups = 0;  ///< of a row and thread, kHeld at least; packs that begin at V or later are empty
  int kept = 0;    ///< groups after those in registers that wait in shared memory for the gradient
  int again = 0;   ///< groups after these, which the gradient reads from memory again
};

__device__ __forceinline__ void copy_async(float4* to, const float* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
__device__ __forceinline__ void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until no more than the N youngest groups are on their way.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// e^x for x <= 0. The product's rounding costs |x| units of the last place, where e^x is small by as much.
__device__ __forceinline__ float exp_below(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}
__device__ __forceinline__ float4 exp_below(const float4& x, float most) {
  return {exp_below(x.x - most), exp_below(x.y - most), exp_below(x.z - most), exp_below(x.w - most)};
}

/// The maximum; a NaN is found again by the exponentials.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float larger(float a, const float4& x) {
  return larger(larger(a, larger(x.x, x.y)), larger(x.z, x.w));
}
__device__ __forceinline__ float sum_of(const float4& x) { return (x.x + x.y) + (x.z + x.w); }

/// The four numbers of a pack whose first column is `column`, -infinity from `vocab` on.
__device__ __forceinline__ void mask(float4& x, int column, int vocab) {
  const float none = -__builtin_inff();
  if (column + 4 <= vocab) return;
  if (column >= vocab) x.x = none;
  if (column + 1 >= vocab) x.y = none;
  if (column + 2 >= vocab) x.z = none;
  if (column + 3 >= vocab) x.w = none;
}

/// The first column of a thread's pack of a group.
__device__ __forceinline__ int column_of(int group, int pack) {
  return (group * kGroup + pack) * kStep + static_cast<int>(threadIdx.x) * kPack;
}

/// The groups of this thread in all rows of its block, in the order in which it takes them: of every row all
/// `groups`, then the last `again` of these once more. After the last row there are empty ones, so that
/// always kRing groups of copies are open and how many may be on their way is known when compiling.
template <int kRing>
class Feed {
 public:
  /// `ring`: this thread's first place; the others follow at distances of kThreads.
  __device__ __forceinline__ Feed(const Loss& c, float4* ring)
      : c_(c), ring_(ring), row_(static_cast<std::int64_t>(blockIdx.x) - gridDim.x) {
    begin_row();
    for (int i = 0; i < kRing; ++i) ask();
  }

  /// The next group, of which the caller knows the number; -infinity where there is no logit.
  __device__ __forceinline__ void take(int group, float4 (&x)[kGroup]) {
    wait_for_copies<kRing - 1>();
    const float4* from = ring_ + place_ * kGroup * kThreads;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = from[i * kThreads];
    ask();
    if ((group + 1) * kGroup * kStep <= c_.vocab) return;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) mask(x[i], column_of(group, i), c_.vocab);
  }

 private:
  __device__ __forceinline__ void begin_row() {
    row_ += gridDim.x;
    from_ = c_.logits + row_ * c_.logits_stride + threadIdx.x * kPack;
    left_ = row_ < c_.T ? c_.V - static_cast<int>(threadIdx.x) * kPack : 0;
    group_ = 0;
  }
  __device__ __forceinline__ void ask() {
    float4* to = ring_ + place_ * kGroup * kThreads;
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i * kStep < left_) copy_async(to + i * kThreads, from_ + i * kStep);
    end_group_of_copies();
    place_ = place_ + 1 == kRing ? 0 : place_ + 1;
    ++group_;
    const int forward = (group_ == c_.groups ? 1 - c_.again : 1) * kGroup * kStep;
    from_ += forward;
    left_ -= forward;
    if (group_ == c_.groups + c_.again) begin_row();
  }

  const Loss& c_;
  float4* ring_;
  int place_ = 0;     ///< of the group that is taken next, and asked for once that is taken
  std::int64_t row_;  ///< what is asked for next, as the following
  int group_ = 0;
  const float* from_ = nullptr;  ///< the thread's first pack of the group
  int left_ = 0;                 ///< columns from there to the end of the row
};

/// Part of a row: the largest logit, and the sum of e^(logit - most).
struct Part {
  float most, sum;

  __device__ __forceinline__ void add(const float4 (&x)[kGroup]) {
    float now = most;
#pragma unroll
    for (const float4& v : x) now = larger(now, v);
    if (now > most) {
      sum *= exp_below(most - now);
      most = now;
    }
#pragma unroll
    for (const float4& v : x) sum += sum_of(exp_below(v, most));
  }
};

/// The same for all threads of a warp, on each of them.
__device__ __forceinline__ Part over_warp(const Part& own) {
  Part all;
  all.most = warp_max(own.most);
  all.sum = warp_sum(own.sum * exp_below(own.most - all.most));
  return all;
}
/// For all threads of the block. `parts` must not be those of the call before: then one barrier is enough.
__device__ __forceinline__ Part over_block(const Part& own, Part* parts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Part of_warp = over_warp(own);
  if (lane == 0) parts[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return over_warp(lane < kThreads / kWarp ? parts[lane] : Part{kLowest, 0});
}

/// What a row's gradient is made with.
template <class D>
struct Gradient {
  D* d;      ///< of the thread's first column
  int left;  ///< columns from there to the end of the row
  bool ignored;

  /// Writes a group: `factor` times e.
  __device__ __forceinline__ void put(int group, const float4 (&e)[kGroup], float factor) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int column = (group * kGroup + i) * kStep;
      if (column >= left) return;
      float v[kPack] = {e[i].x * factor, e[i].y * factor, e[i].z * factor, e[i].w * factor};
      if (ignored) {
#pragma unroll
        for (float& zero : v) zero = 0;  // also where the logits are not finite
      }
      store_pack(d + column, v);
    }
  }
  /// The same from logits.
  __device__ __forceinline__ void put(int group, float4 (&x)[kGroup], float most, float factor) const {
#pragma unroll
    for (float4& v : x) v = exp_below(v, most);
    put(group, x, factor);
  }
};

template <class D, int kRing>
__global__ void __launch_bounds__(kThreads, 1) cross_entropy_kernel(const Loss c) {
  extern __shared__ float4 places[];
  __shared__ Part parts[2][kThreads / kWarp];
  Feed<kRing> feed(c, places + threadIdx.x);
  float4* const kept = places + kRing * kGroup * kThreads + threadIdx.x;
  const auto target_of = [&](std::int64_t t) { return t < c.T ? c.targets[t * c.targets_stride] : -1; };
  int turn = 0;
  int next_target = target_of(blockIdx.x);
  for (std::int64_t t = blockIdx.x; t < c.T; t += gridDim.x, turn ^= 1) {
    // Read a row ahead: the logit's address is known when the row begins.
    const int target = next_target;
    const float at_target = target < 0 ? 0.0f : c.logits[t * c.logits_stride + target];
    next_target = target_of(t + gridDim.x);

    Part own{kLowest, 0};
    float4 held[kHeld][kGroup];
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
      feed.take(g, held[g]);
#pragma unroll
      for (const float4& x : held[g]) own.most = larger(own.most, x);
    }
    const float held_most = own.most;
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
#pragma unroll
      for (float4& e : held[g]) {
        e = exp_below(e, held_most);
        own.sum += sum_of(e);
      }
    }
    float4 x[kGroup];
    for (int g = kHeld; g < c.groups; ++g) {
      feed.take(g, x);
      if (g < kHeld + c.kept) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) kept[((g - kHeld) * kGroup + i) * kThreads] = x[i];
      }
      own.add(x);
    }
    const Part row = over_block(own, parts[turn]);
    // The difference first: it is small where the model is sure, and then the logarithm decides.
    if (threadIdx.x == 0) c.loss[t] = target < 0 ? 0.0f : logf(row.sum) + (row.most - at_target);
    if (c.d.empty()) continue;

    const int first = static_cast<int>(threadIdx.x) * kPack;
    const Gradient<D> gradient{c.d.template at<D>(t, first), c.V - first, target < 0};
    const float factor = c.grad_scale / row.sum, held_factor = factor * exp_below(held_most - row.most);
#pragma unroll
    for (int g = 0; g < kHeld; ++g) gradient.put(g, held[g], held_factor);
    int g = kHeld;
    for (; g < kHeld + c.kept; ++g) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = kept[((g - kHeld) * kGroup + i) * kThreads];
      gradient.put(g, x, row.most, factor);
    }
    for (; g < c.groups; ++g) {
      feed.take(g, x);
      gradient.put(g, x, row.most, factor);
    }
    // The thread that wrote the target's pack writes over it, so that the packs need not be compared with it.
    if (target >= 0 && target / kPack % kThreads == static_cast<int>(threadIdx.x))
      c.d.set(t, target, c.grad_scale * (exp_below(at_target - row.most) / row.sum - 1.0f));
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

template <class D, int kRing>
void run_with_ring(Stream& stream, Loss c, int places) {
  c.groups = std::max(kHeld, (c.V + kGroup * kStep - 1) / (kGroup * kStep));
  if (!c.d.empty()) {
    c.kept = std::min(c.groups - kHeld, places - kRing);
    c.again = c.groups - kHeld - c.kept;
  }
  const unsigned blocks =
      static_cast<unsigned>(std::min<std::int64_t>(c.T, cuda_device(stream).multiprocessors()));
  launch(stream, "cross_entropy", cross_entropy_kernel<D, kRing>, dim3(blocks), dim3(kThreads),
         static_cast<std::size_t>(kRing + c.kept) * kGroup * kThreads * sizeof(float4), c);
}

/// A ring of 80 KB where 120 KB do not fit: on consumer GPUs, whose memory needs less on its way.
template <class D>
void run_in_packs(Stream& stream, const Loss& c) {
  constexpr int kPlaceBytes = kGroup * kThreads * static_cast<int>(sizeof(float4));
  constexpr int kOwn = 1024;  // the sums of the warps
  const int places = (cuda_device(stream).attached<SharedMemory>().bytes - kOwn) / kPlaceBytes;
  if (places >= 3)
    run_with_ring<D, 3>(stream, c, places);
  else
    run_with_ring<D, 2>(stream, c, places);
}

}  // namespace

void run(Stream& stream, const CrossEntropy& a) {
  constexpr std::string_view op = "cross_entropy";
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
  if (c.d.is_bf16)
    run_in_packs<bf16>(stream, c);
  else
    run_in_packs<float>(stream, c);
}

}  // namespace nibble::cuda
