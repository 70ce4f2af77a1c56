// SPDX-License-Identifier: Apache-2.0
#include "ops/any_rows.cuh"
#include "ops/loss/greedy_match.h"

/// A block a token: the row is read once, 4 bytes a logit; 0.82 GB and 200 us for T = 4096, V = 50304 at 4.1
/// TB/s. It runs in evaluations alone.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

struct Rows {
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  const std::int32_t* targets = nullptr;
  std::int64_t targets_stride = 1;
  float* greedy = nullptr;
  int vocab = 0;
};

__global__ void __launch_bounds__(kThreads) greedy_match_kernel(const Rows r) {
  const std::int64_t t = blockIdx.x;
  const int target = r.targets[t * r.targets_stride];
  const float* x = r.logits + t * r.logits_stride;
  bool beaten = target < 0;
  if (!beaten) {
    const float most = x[target];
    for (int v = static_cast<int>(threadIdx.x); v < r.vocab; v += kThreads)
      beaten = beaten || !(v < target ? x[v] < most : x[v] <= most);
  }
  const int any = __syncthreads_or(beaten ? 1 : 0);
  if (threadIdx.x == 0) r.greedy[t] = any != 0 ? 0.0f : 1.0f;
}

}  // namespace

void run(Stream& stream, const GreedyMatch& g) {
  Rows r;
  r.logits = g.logits_TV.data();
  r.logits_stride = g.logits_TV.stride(0);
  r.targets = g.targets_T.data();
  r.targets_stride = g.targets_T.stride(0);
  r.greedy = g.greedy_T.data();
  r.vocab = static_cast<int>(g.vocab == 0 ? g.logits_TV.size(1) : g.vocab);
  launch(stream, "greedy_match", greedy_match_kernel, dim3(static_cast<unsigned>(g.logits_TV.size(0))),
         dim3(kThreads), 0, r);
}

}  // namespace nibble::cuda
