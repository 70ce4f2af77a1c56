// SPDX-License-Identifier: Apache-2.0
#include "ops/health/merge_cuda.cuh"
#include "ops/health/tensor_sums.h"

/// A block a stretch of the tensor, and one block that merges: everything is read once, and the bytes of a
/// large tensor decide the time.
namespace nibble::cuda {
namespace {

constexpr std::int64_t kStretch = 32 * kMergeThreads;

/// Elements of a matrix in the order of its memory, kPack neighbours at a time: the axis with the smaller
/// stride runs fastest. Packs of more than one need contiguous, aligned rows of whole packs.
template <class T, int kPack>
struct TensorJob {
  using Sums = TensorSums;
  const T* x;
  std::int64_t outer_stride, inner_stride, inner, count;  ///< the last two in packs
  __device__ void add(std::int64_t n, Sums& s) const {
    const T* const from = x + n / inner * outer_stride + n % inner * kPack * inner_stride;
    float pack[kPack];
    load_pack<kPack>(from, pack);
#pragma unroll
    for (int k = 0; k < kPack; ++k) s.add(pack[k]);
  }
};

struct DifferenceJob {
  using Sums = DifferenceSums;
  const float *a, *b;
  std::int64_t a_stride, b_stride, inner, count;
  __device__ void add(std::int64_t n, Sums& s) const {
    s.add(a[n / inner * a_stride + n % inner], b[n / inner * b_stride + n % inner]);
  }
};

template <class Job>
__global__ void __launch_bounds__(kMergeThreads) stretch_kernel(Job job, typename Job::Sums* parts) {
  typename Job::Sums mine;
  const std::int64_t begin = blockIdx.x * kStretch;
  const std::int64_t end = begin + kStretch < job.count ? begin + kStretch : job.count;
  for (std::int64_t n = begin + threadIdx.x; n < end; n += kMergeThreads) job.add(n, mine);
  const typename Job::Sums all = block_merge(mine);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

template <class Job>
void measure(Stream& stream, std::string_view op, const Job& job, typename Job::Sums* out) {
  using Sums = typename Job::Sums;
  if (job.count == 0) return;
  const ArenaScope scope(stream.scratch());
  const std::int64_t blocks = (job.count + kStretch - 1) / kStretch;
  Sums* parts = stream.scratch().take<Sums>(blocks).data();
  launch(stream, op, stretch_kernel<Job>, blocks_for(blocks, 1), kMergeThreads, 0, job, parts);
  launch(stream, op, merge_kernel<Sums>, 1, kMergeThreads, 0, parts, blocks, out);
}

template <class T>
struct LogitJob {
  const T *q, *k;
  std::int64_t q_token, q_head, k_token, k_head, width, per_group, seq_len, every, per_sequence;
  float scale;
};

/// A block one query of one head, a warp every eighth key.
template <class T>
__global__ void __launch_bounds__(kMergeThreads) logit_kernel(LogitJob<T> job, LogitSums* parts) {
  const std::int64_t i = blockIdx.x;
  const std::int64_t first = i / job.per_sequence * job.seq_len;
  const std::int64_t t = first + (i % job.per_sequence + 1) * job.every - 1;
  const T* q = job.q + t * job.q_token + blockIdx.y * job.q_head;
  const T* k = job.k + blockIdx.y / job.per_group * job.k_head;
  const int lane = threadIdx.x % kWarp;
  LogitSums mine;
  for (std::int64_t s = first + threadIdx.x / kWarp; s <= t; s += kMergeThreads / kWarp) {
    float dot = 0;
    for (std::int64_t d = lane; d < job.width; d += kWarp)
      dot += nibble::to_float(q[d]) * nibble::to_float(k[s * job.k_token + d]);
    mine.add(job.scale * warp_sum(dot));
  }
  LogitSums all = block_merge(mine);
  all.queries = 1;  // not one a key and lane
  if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = all;
}

}  // namespace

void run(Stream& stream, const MeasureTensor& m) {
  const bool turned = m.x_RC.stride(0) < m.x_RC.stride(1);
  const int outer = turned ? 1 : 0;
  with_type(m.x_RC, [&](auto x_RC) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(x_RC.data())>>;
    constexpr int kPack = 8;
    const std::int64_t outer_stride = x_RC.stride(outer), inner = x_RC.size(1 - outer);
    if (x_RC.stride(1 - outer) == 1 && inner % kPack == 0 && packs_fit<kPack>(x_RC.data(), outer_stride))
      measure(stream, "measure_tensor",
              TensorJob<T, kPack>{x_RC.data(), outer_stride, 1, inner / kPack, x_RC.numel() / kPack}, m.out);
    else
      measure(stream, "measure_tensor",
              TensorJob<T, 1>{x_RC.data(), outer_stride, x_RC.stride(1 - outer), inner, x_RC.numel()}, m.out);
  });
}

void run(Stream& stream, const MeasureDifference& m) {
  measure(stream, "measure_difference",
          DifferenceJob{m.a_RC.data(), m.b_RC.data(), m.a_RC.stride(0), m.b_RC.stride(0), m.a_RC.size(1),
                        m.a_RC.numel()},
          m.out);
}

void run(Stream& stream, const MeasureLogits& m) {
  const ArenaScope scope(stream.scratch());
  const std::int64_t heads = m.q_THD.size(1), per_sequence = m.seq_len / m.every;
  const std::int64_t queries = m.q_THD.size(0) / m.seq_len * per_sequence;
  LogitSums* parts = stream.scratch().take<LogitSums>(queries * heads).data();
  with_type(m.q_THD, [&](auto q_THD) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(q_THD.data())>>;
    const View<const T> k_TGD = m.k_TGD.as<T>();
    const LogitJob<T> job{q_THD.data(),    k_TGD.data(),    q_THD.stride(0), q_THD.stride(1),
                          k_TGD.stride(0), k_TGD.stride(1), q_THD.size(2),   heads / k_TGD.size(1),
                          m.seq_len,       m.every,         per_sequence,    m.scale};
    launch(stream, "measure_logits", logit_kernel<T>,
           dim3(static_cast<unsigned>(queries), static_cast<unsigned>(heads)), kMergeThreads, 0, job, parts);
  });
  launch(stream, "measure_logits", merge_kernel<LogitSums>, 1, kMergeThreads, 0, parts, queries * heads,
         m.out);
}

}  // namespace nibble::cuda
