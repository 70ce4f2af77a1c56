// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/cuda/cluster.cuh"
#include "ops/any_rows.cuh"
#include "ops/loss/cross_entropy.h"

/// A multiprocessor has one block of two groups of threads, each with a row of its own in half of the shared
/// memory. A row comes there by asynchronous copies; the gradient's pass reads it there again and asks for
/// the group's next row into each place it has read, so that the next row arrives while this one's gradient
/// is written. As every thread fills and reads places of its own, no barrier stands between copy and
/// arithmetic; there is one a row, in the sum.
///
/// The groups take turns in the first pass, which moves no bytes: else they come to it together, both having
/// waited for the same memory, and the memory idles until both are through. A row then takes the time of its
/// bytes and that of its arithmetic one after the other: 9.3 us a row and multiprocessor at V = 50304 in BF16
/// without turns, where bytes alone are 6.5.
///
/// A longer row is shared by a cluster of two, four or eight blocks, in which every group has its part of the
/// group's row in shared memory and goes through it in the same way; the sums of the parts are sent to all
/// blocks.
///
/// Where there are no clusters (before compute capability 9.0), or eight blocks are too few, one block has as
/// much of a row as fits and reads the rest a second time, partly from the second cache.
///
/// Floors at 4.18 TB/s, every row read once. V = 50304, 4096 tokens, a BF16 gradient: 6 bytes an element of
/// FP32 logits, 1.24 GB, 300 us; 4 of BF16 ones, 200 us, that is 6.5 us a row on each of 132 multiprocessors.
/// Arithmetic: two exponentials an element, 3.4 us a row at sixteen a cycle. V = 151936, 8192 tokens, all in
/// BF16: 5.0 GB, 1190 us.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 512;  ///< of a group
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroups = 2;     ///< of a block, of which a multiprocessor has one
constexpr int kMostRanks = 8;  ///< blocks of a cluster
/// So many times the clusters that CUDA says run at once are launched, each with fewer rows: should its count
/// be a few too high, those left over would otherwise take as long again as all others.
constexpr int kWaves = 4;
/// Below every logit but -infinity, from which it can be subtracted.
constexpr float kLowest = -3.402823466e38f;

struct Loss {
  AnyRows logits;
  const std::int32_t* targets = nullptr;
  std::int64_t targets_stride = 1;
  float* loss = nullptr;
  AnyRows d;  ///< empty: no gradient
  std::int64_t T = 0;
  int V = 0, vocab = 0;
  float grad_scale = 1;
  int ranks = 1;  ///< blocks of a cluster, which share a row
  int share = 0;  ///< packs of a row that are a block's; the last block's may be fewer
  int kept = 0;   ///< of these, packs that lie in shared memory; all where there are several blocks
};

__device__ __forceinline__ void copy_async(uint4* to, const void* from) {
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

/// Part of a row: the largest logit, and the sum of e^(logit - most).
struct Part {
  float most = kLowest, sum = 0;

  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N]) {
    float now = most;
#pragma unroll
    for (const float v : x) now = fmaxf(now, v);  // a NaN is found again by the exponentials
    if (now > most) {
      sum *= exp_below(most - now);
      most = now;
    }
    float of_pack = 0;
#pragma unroll
    for (const float v : x) of_pack += exp_below(v - most);
    sum += of_pack;
  }
};

/// The same for all threads of a warp, on each of them.
__device__ __forceinline__ Part over_warp(const Part& own) {
  Part all;
  all.most = warp_max(own.most);
  all.sum = warp_sum(own.sum * exp_below(own.most - all.most));
  return all;
}
/// Barriers of a block by number: 0 is __syncthreads. Each group has one that it waits at for its turn, and
/// the other group says there that it is through; and one of its own.
__device__ __forceinline__ void wait_for_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroups * kThreads) : "memory");
}
__device__ __forceinline__ void hand_on(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(kGroups * kThreads) : "memory");
}
__device__ __forceinline__ void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(3 + group), "n"(kThreads) : "memory");
}

/// Where the parts of one group's row meet. `turn` counts the group's rows: two places are used by turns,
/// since a warp that comes to a row's sum may find others still reading the sums of the row before. Nobody
/// still reads those of two rows before: all warps have left parts of the row between, after reading them.
template <bool kCluster>
struct MeetingPlace {
  float2 parts[2][(kCluster ? kMostRanks : 1) * kWarps];  ///< most and sum
  Inbox inboxes[2];

  /// For all threads of the group, in a cluster of the same group of every block: the same bits on each, as
  /// the parts are added in the order of blocks and warps.
  __device__ __forceinline__ Part sum(const Part& own, int group, int turn, int ranks, int rank) {
    const int thread = static_cast<int>(threadIdx.x) % kThreads, lane = thread % kWarp, warp = thread / kWarp;
    float2* const all_parts = parts[turn % 2];
    const auto part = [&](int i) { return Part{all_parts[i].x, all_parts[i].y}; };
    const Part of_warp = over_warp(own);
    if constexpr (!kCluster) {
      if (lane == 0) all_parts[warp] = make_float2(of_warp.most, of_warp.sum);
      group_barrier(group);
      return over_warp(lane < kWarps ? part(lane) : Part{});
    }
    Inbox& inbox = inboxes[turn % 2];
    if (thread == 0) inbox.expect(static_cast<std::uint32_t>(ranks * kWarps) * sizeof(float2));
    if (lane < ranks)
      inbox.send(all_parts + rank * kWarps + warp, static_cast<unsigned>(lane), of_warp.most, of_warp.sum);
    inbox.wait(static_cast<std::uint32_t>(turn) / 2);
    static_assert(kMostRanks <= kWarp && 2 * kWarps >= kWarp);  // a lane a block, and a part a lane
    Part all = part(lane);
    for (int i = lane + kWarp; i < ranks * kWarps; i += kWarp) {
      const Part a = all, b = part(i);
      all.most = fmaxf(a.most, b.most);
      all.sum = a.sum * exp_below(a.most - all.most) + b.sum * exp_below(b.most - all.most);
    }
    return over_warp(all);
  }
};

/// A block's part of a row as packs of T, the first `kept` (or all) of which wait in shared memory. A pack is
/// loaded, and asked for, by one thread alone.
template <class T, bool kAll>
struct Row {
  static constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  const T* logits;
  uint4* places;
  int kept;   ///< 0 where there is no such row
  int vocab;  ///< columns from the part's start on that take part

  /// The numbers of pack i, -infinity from `vocab` on.
  __device__ __forceinline__ void load(int i, float (&x)[kPack]) const {
    Stored<T, kPack> pack;
    pack.load(kAll || i < kept ? reinterpret_cast<const T*>(places + i) : logits + i * kPack);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x[j] = pack[j];
    if ((i + 1) * kPack <= vocab) return;
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (i * kPack + j >= vocab) x[j] = -__builtin_inff();
  }
  __device__ __forceinline__ void ask(int i) const {
    if (i < kept) copy_async(places + i, logits + i * kPack);
  }
};

template <class T>
inline constexpr int kPackFor = Row<T, false>::kPack;

template <class T, class D, bool kCluster>
__global__ void __launch_bounds__(kGroups* kThreads, 1) cross_entropy_kernel(const Loss c) {
  constexpr int kPack = kPackFor<T>;
  extern __shared__ uint4 places[];
  __shared__ MeetingPlace<kCluster> meetings[kGroups];
  const int group = static_cast<int>(threadIdx.x) / kThreads,
            first = static_cast<int>(threadIdx.x) % kThreads;
  MeetingPlace<kCluster>& meeting = meetings[group];
  // The part: `packs` packs from column `begin` on. All blocks of a cluster go through the same rows.
  const int ranks = kCluster ? c.ranks : 1, rank = static_cast<int>(blockIdx.x) % ranks;
  const int begin = rank * c.share * kPack;
  const int packs = kCluster ? min(c.share, c.V / kPack - rank * c.share) : c.V / kPack;
  const std::int64_t step = std::int64_t{kGroups} * (gridDim.x / static_cast<unsigned>(ranks));
  const auto row_at = [&](std::int64_t t) {
    return Row<T, kCluster>{c.logits.template at<const T>(t, begin), places + group * c.kept,
                            t < c.T ? c.kept : 0, c.vocab - begin};
  };
  const auto target_of = [&](std::int64_t t) { return t < c.T ? c.targets[t * c.targets_stride] : -1; };
  // Groups make the same number of turns, the second one perhaps its last without a row.
  std::int64_t t = std::int64_t{kGroups} * (static_cast<int>(blockIdx.x) / ranks) + group;
  const int turns = static_cast<int>((c.T - (t - group) + step - 1) / step);
  if constexpr (kCluster) {
    if (first < 2) meeting.inboxes[first].init();
    cluster_barrier();  // all blocks have begun: they may be sent to
  }
  Row<T, kCluster> row = row_at(t);
  for (int i = first; i < packs; i += kThreads) row.ask(i);
  int next_target = target_of(t);
  if (group != 0) hand_on(group);
  for (int turn = 0; turn < turns; ++turn, t += step) {
    // Read a row ahead: the logit's address is known when the row begins.
    const int target = next_target;
    const float at_target = target < 0 ? 0.0f : to_float(row.logits[target - begin]);
    next_target = target_of(t + step);
    const Row<T, kCluster> next = row_at(t + step);

    wait_for_copies();
    wait_for_turn(group);
    const bool present = t < c.T;
    Part all;
    float x[kPack];
    if (present) {
      Part own;
#pragma unroll 4
      for (int i = first; i < packs; i += kThreads) {
        row.load(i, x);
        own.add(x);
      }
      all = meeting.sum(own, group, turn, ranks, rank);
    }
    if (group == 0 || turn + 1 < turns) hand_on(group);  // the very last turn is followed by none
    if (!present) break;
    // The difference first: it is small where the model is sure, and then the logarithm decides.
    if (rank == 0 && first == 0) c.loss[t] = target < 0 ? 0.0f : logf(all.sum) + (all.most - at_target);
    if (c.d.empty()) {
      for (int i = first; i < packs; i += kThreads) next.ask(i);
      row = next;
      continue;
    }
    const float factor = c.grad_scale / all.sum;
    D* d = c.d.template at<D>(t, begin);
#pragma unroll 4
    for (int i = first; i < packs; i += kThreads) {
      row.load(i, x);
#pragma unroll
      for (float& v : x) v = target < 0 ? 0.0f : factor * exp_below(v - all.most);
      store_pack(d + i * kPack, x);
      next.ask(i);
    }
    // The thread that wrote the target's pack writes over it, so that the packs need not be compared with it.
    const int pack = target / kPack - rank * c.share;
    if (target >= 0 && pack >= 0 && pack < packs && pack % kThreads == first)
      c.d.set(t, target, c.grad_scale * (exp_below(at_target - all.most) / all.sum - 1.0f));
    row = next;
  }
  if constexpr (kCluster) cluster_barrier();  // nothing is sent to a block that has ended
}

constexpr int kAnyThreads = 256;

/// Any alignment, any number of columns: a row is read from memory three times.
__global__ void __launch_bounds__(kAnyThreads) any_cross_entropy_kernel(const Loss c) {
  const std::int64_t t = blockIdx.x;
  const int target = c.targets[t * c.targets_stride];
  const float at_target = target < 0 ? 0.0f : c.logits.get(t, target);
  float most = -__builtin_inff();
  for (int v = static_cast<int>(threadIdx.x); v < c.vocab; v += kAnyThreads)
    most = fmaxf(most, c.logits.get(t, v));
  most = block_max<kAnyThreads>(most);
  float sum = 0;
  for (int v = static_cast<int>(threadIdx.x); v < c.vocab; v += kAnyThreads)
    sum += exp_below(c.logits.get(t, v) - most);
  sum = block_sum<kAnyThreads>(sum);
  if (threadIdx.x == 0) c.loss[t] = target < 0 ? 0.0f : logf(sum) + (most - at_target);
  if (c.d.empty()) return;
  for (int v = static_cast<int>(threadIdx.x); v < c.V; v += kAnyThreads) {
    float d = 0;
    if (target >= 0 && v < c.vocab) {
      const float e = exp_below(c.logits.get(t, v) - most);
      d = v == target ? c.grad_scale * (e / sum - 1.0f) : e * (c.grad_scale / sum);
    }
    c.d.set(t, v, d);
  }
}

/// Of a block.
struct SharedMemory {
  explicit SharedMemory(CudaDevice&) {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "cross_entropy");
    cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cross_entropy");
  }
  int bytes = 0;
};

constexpr dim3 kBlock(kGroups* kThreads);

/// In clusters; false where the card has none that hold c's rows.
template <class T, class D>
bool run_in_clusters(Stream& stream, Loss c, int places) {
  constexpr std::string_view op = "cross_entropy";
  const int packs = c.V / kPackFor<T>;
  while (c.ranks < kMostRanks && c.ranks * places < packs) c.ranks *= 2;
  if (c.ranks * places < packs) return false;
  c.share = (packs + c.ranks - 1) / c.ranks;
  c.kept = c.share;
  const std::size_t bytes = static_cast<std::size_t>(kGroups) * c.kept * 16;
  const auto size = static_cast<unsigned>(c.ranks);
  const std::int64_t at_once =
      clusters_at_once(stream, op, cross_entropy_kernel<T, D, true>, size, kBlock, bytes);
  if (at_once == 0) return false;
  // At least eight rows a group: a group's first row finds nothing to compute while it arrives.
  const std::int64_t waves = std::clamp<std::int64_t>(c.T / (8 * kGroups * at_once), 1, kWaves);
  const std::int64_t clusters = std::min((c.T + kGroups - 1) / kGroups, waves * at_once);
  launch_clusters(stream, op, cross_entropy_kernel<T, D, true>, static_cast<unsigned>(clusters), size, kBlock,
                  bytes, c);
  return true;
}

template <class T, class D>
void run_in_packs(Stream& stream, Loss c) {
  constexpr int kOwn = static_cast<int>(sizeof(MeetingPlace<true>)) * kGroups;
  const int places = (cuda_device(stream).attached<SharedMemory>().bytes - kOwn) / kGroups / 16;
  const int packs = c.V / kPackFor<T>;
  if (packs > places && run_in_clusters<T, D>(stream, c, places)) return;
  c.share = packs;
  c.kept = std::min(packs, places);
  const std::int64_t blocks =
      std::min<std::int64_t>((c.T + kGroups - 1) / kGroups, cuda_device(stream).multiprocessors());
  launch(stream, "cross_entropy", cross_entropy_kernel<T, D, false>, dim3(static_cast<unsigned>(blocks)),
         kBlock, static_cast<std::size_t>(kGroups) * c.kept * 16, c);
}

template <class T>
void run_in_packs(Stream& stream, const Loss& c) {
  if (c.d.is_bf16)
    run_in_packs<T, bf16>(stream, c);
  else
    run_in_packs<T, float>(stream, c);
}

}  // namespace

void run(Stream& stream, const CrossEntropy& a) {
  Loss c;
  c.logits = a.logits_TV;
  c.targets = a.targets_T.data();
  c.targets_stride = a.targets_T.stride(0);
  c.loss = a.loss_T.data();
  c.T = a.logits_TV.size(0);
  c.V = static_cast<int>(a.logits_TV.size(1));
  c.vocab = a.vocab == 0 ? c.V : static_cast<int>(a.vocab);
  c.grad_scale = a.grad_scale;
  const auto fits = [&](const auto& v) {
    return c.logits.is_bf16 ? in_packs<kPackFor<bf16>>(v, c.V) : in_packs<kPackFor<float>>(v, c.V);
  };
  bool packs = fits(a.logits_TV);
  if (!a.dlogits_TV.empty()) {
    c.d = a.dlogits_TV;
    packs = packs && fits(a.dlogits_TV);
  }
  if (!packs)
    launch(stream, "cross_entropy", any_cross_entropy_kernel, dim3(static_cast<unsigned>(c.T)),
           dim3(kAnyThreads), 0, c);
  else if (c.logits.is_bf16)
    run_in_packs<bf16>(stream, c);
  else
    run_in_packs<float>(stream, c);
}

}  // namespace nibble::cuda
