// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kernel.cuh"
#include "ops/quantize/amax_history.h"
#include "quant/amax.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

struct Choice {
  const float* found;
  const float* history;
  std::int64_t length;
  AmaxRule rule;
  float start;
  int margin;
  std::uint32_t step;
  const std::uint32_t* step_at;
  float *pending, *used;
};

/// One block an operand: 4 KB of history are read in less time than a launch takes.
__global__ void __launch_bounds__(kThreads) choose_kernel(const Choice c) {
  __shared__ float parts[kThreads];
  float most = 0;
  for (std::int64_t i = threadIdx.x; i < c.length; i += kThreads) most = amax_keeping_nan(most, c.history[i]);
  parts[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (float x : parts) most = amax_keeping_nan(most, x);
  const std::uint32_t step = c.step_at != nullptr ? *c.step_at : c.step;
  const float newest = step == 0 ? 0.0f : c.history[(step - 1) % c.length];
  *c.pending = amax_keeping_nan(*c.pending, *c.found);
  *c.used = chosen_amax(c.rule, most, newest, *c.found, c.start, c.margin, *c.used);
}

__global__ void __launch_bounds__(kThreads)
    push_kernel(float* pending, float* history, std::int64_t slots, std::int64_t length, std::uint32_t step,
                const std::uint32_t* step_at, const std::uint32_t* halted) {
  const std::int64_t s = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (s >= slots) return;
  if (step_at != nullptr) step = *step_at;
  if (halted == nullptr || *halted == 0) history[s * length + step % length] = pending[s];
  pending[s] = 0;
}

}  // namespace

void run(Stream& stream, const ChooseAmax& c) {
  launch(stream, "choose_amax", choose_kernel, 1, kThreads, 0,
         Choice{c.found, c.history_L.data(), c.history_L.size(0), c.rule, c.start, c.margin, c.step,
                c.step_at, c.pending, c.used});
}

void run(Stream& stream, const PushAmax& p) {
  launch(stream, "push_amax", push_kernel, blocks_for(p.pending_S.size(0), kThreads), kThreads, 0,
         p.pending_S.data(), p.history_SL.data(), p.pending_S.size(0), p.history_SL.size(1), p.step,
         p.step_at, p.halted);
}

}  // namespace nibble::cuda
