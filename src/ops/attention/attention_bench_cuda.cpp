// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/cuda/stopwatch.h"
#include "numeric/random_key.h"
#include "ops/attention/attention_bench.h"
#include "ops/attention/attention_cuda.h"

namespace nibble::cuda {
namespace {

struct Shape {
  std::int64_t sequences, seq_len, heads, groups, width;
};
constexpr Shape kShapes[] = {{4, 4096, 16, 8, 128}, {32, 1024, 12, 12, 64}};

/// Device memory for a BF16 tensor [tokens, heads, width] of normal numbers.
struct Tensor {
  Buffer buffer;
  RealView view;

  Tensor(Device& device, std::int64_t tokens, std::int64_t heads, std::int64_t width) {
    const Layout layout = Layout::contiguous(tokens, heads, width);
    std::vector<bf16> values(static_cast<std::size_t>(layout.numel()));
    constexpr std::size_t kDrawn = 65521;  // a prime: no two rows are equal
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          i < kDrawn ? bf16::nearest(static_cast<float>(initial_normal(1, 1, i))) : values[i - kDrawn];
    buffer = Buffer(device, values.size() * sizeof(bf16));
    view = RealView(buffer.data(), DType::BF16, layout);
    device.copy_from_host(buffer.data(), values.data(), buffer.bytes());
    device.synchronize();
  }
};

/// Seconds of the fastest call within a time budget, after one to warm up.
template <class F>
double fastest(CudaDevice& device, double budget, F f) {
  using Clock = std::chrono::steady_clock;
  Stopwatch watch(device);
  f();
  device.synchronize();
  double best = 1e30;
  const auto start = Clock::now();
  do {
    watch.start();
    f();
    best = std::min(best, watch.stop());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < budget);
  return best;
}

AttentionRate measure(Stream& stream, const Shape& s, double budget) {
  CudaDevice& device = cuda_device(stream);
  const std::int64_t tokens = s.sequences * s.seq_len;
  const Tensor qkv(device, tokens, s.heads + 2 * s.groups, s.width),
      dqkv(device, tokens, s.heads + 2 * s.groups, s.width), out(device, tokens, s.heads, s.width),
      dout(device, tokens, s.heads, s.width);
  const Buffer lse(device, static_cast<std::size_t>(s.heads * tokens) * sizeof(float));
  const auto queries = [&](const Tensor& t) { return t.view.slice(1, 0, s.heads); };
  const auto keys = [&](const Tensor& t) { return t.view.slice(1, s.heads, s.groups); };
  const auto values = [&](const Tensor& t) { return t.view.slice(1, s.heads + s.groups, s.groups); };
  const Attention forward{.q_THD = queries(qkv),
                          .k_TGD = keys(qkv),
                          .v_TGD = values(qkv),
                          .out_THD = out.view,
                          .lse_HT = View<float>(lse.as<float>(), s.heads, tokens),
                          .seq_len = s.seq_len,
                          .scale = 1 / std::sqrt(static_cast<float>(s.width))};
  const AttentionBackward backward{.q_THD = forward.q_THD,
                                   .k_TGD = forward.k_TGD,
                                   .v_TGD = forward.v_TGD,
                                   .out_THD = out.view,
                                   .lse_HT = forward.lse_HT,
                                   .dout_THD = dout.view,
                                   .dq_THD = queries(dqkv),
                                   .dk_TGD = keys(dqkv),
                                   .dv_TGD = values(dqkv),
                                   .seq_len = s.seq_len,
                                   .scale = forward.scale};
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(s.heads * s.seq_len * s.width);
  return {.name = fmt::format("B{} T{} h{} kv{} d{}", s.sequences, s.seq_len, s.heads, s.groups, s.width),
          .forward_engine = attention_engine(stream, forward),
          .backward_engine = attention_engine(stream, backward),
          .forward_seconds = fastest(device, budget, [&] { attention(stream, forward); }),
          .backward_seconds = fastest(device, budget, [&] { attention_backward(stream, backward); }),
          .forward_flops = flops,
          .backward_flops = 2.5 * flops};
}

}  // namespace

std::vector<AttentionRate> measure_attention(Stream& stream, double seconds) {
  std::vector<AttentionRate> rates;
  for (const Shape& s : kShapes) rates.push_back(measure(stream, s, seconds / (2 * std::size(kShapes))));
  return rates;
}

}  // namespace nibble::cuda
