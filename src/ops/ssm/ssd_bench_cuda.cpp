// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "backend/cuda/stopwatch.h"
#include "numeric/random_key.h"
#include "ops/ssm/causal_conv.h"
#include "ops/ssm/ssd.h"

namespace nibble::cuda {
namespace {

struct Shape {
  std::int64_t sequences, seq_len, heads, width, groups, state, taps;
  std::int64_t tokens() const { return sequences * seq_len; }
  std::int64_t inner() const { return heads * width; }
  std::int64_t shared() const { return groups * state; }
  std::int64_t channels() const { return inner() + 2 * shared(); }
  /// The layer's projection: z, then x, B and C, then dt.
  std::int64_t projected() const { return inner() + channels() + heads; }
};
constexpr Shape kShapes[] = {{4, 4096, 64, 64, 8, 128, 4}, {1, 4096, 64, 64, 8, 128, 4}};

/// Device memory with normal numbers times sigma plus mean.
template <class T>
struct Tensor {
  Buffer buffer;
  View<T> view;

  Tensor(Device& device, std::int64_t rows, std::int64_t cols, double sigma = 1, double mean = 0) {
    std::vector<T> values(static_cast<std::size_t>(rows * cols));
    constexpr std::size_t kDrawn = 65521;  // a prime: no two rows are equal
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = i < kDrawn ? from_float<T>(static_cast<float>(mean + sigma * initial_normal(1, 1, i)))
                             : values[i - kDrawn];
    buffer = Buffer(device, values.size() * sizeof(T));
    view = View<T>(buffer.as<T>(), rows, cols);
    device.copy_from_host(buffer.data(), values.data(), buffer.bytes());
    device.synchronize();
  }
  View<T> vector() const { return View<T>(buffer.as<T>(), view.numel()); }
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

std::string name_of_tokens(const char* op, const Shape& s) {
  return fmt::format("{} B{} T{}", op, s.sequences, s.seq_len);
}

SsdRate measure_conv(Stream& stream, const Shape& s, double budget) {
  CudaDevice& device = cuda_device(stream);
  const std::int64_t tokens = s.tokens(), channels = s.channels();
  const Tensor<bf16> projected(device, tokens, s.projected()), dprojected(device, tokens, s.projected()),
      y(device, tokens, channels), dy(device, tokens, channels);
  const Tensor<float> w(device, channels, s.taps, 0.3), dw(device, channels, s.taps),
      b(device, 1, channels, 0.1), db(device, 1, channels);
  const RealView x = RealView(projected.view).cols(s.inner(), channels);
  const CausalConv forward{
      .x_TC = x, .w_CK = w.view, .b_C = b.vector(), .y_TC = y.view, .seq_len = s.seq_len};
  const CausalConvBackward backward{.x_TC = x,
                                    .w_CK = w.view,
                                    .b_C = b.vector(),
                                    .dy_TC = dy.view,
                                    .dx_TC = RealView(dprojected.view).cols(s.inner(), channels),
                                    .dw_CK = dw.view,
                                    .db_C = db.vector(),
                                    .seq_len = s.seq_len};
  const double matrix = 2.0 * static_cast<double>(tokens * channels);
  return {.name = fmt::format("{} c{} k{}", name_of_tokens("conv", s), channels, s.taps),
          .forward_seconds = fastest(device, budget, [&] { causal_conv(stream, forward); }),
          .backward_seconds = fastest(device, budget, [&] { causal_conv_backward(stream, backward); }),
          .forward_bytes = 2 * matrix,
          .backward_bytes = 3 * matrix};
}

SsdRate measure_scan(Stream& stream, const Shape& s, double budget) {
  CudaDevice& device = cuda_device(stream);
  const std::int64_t tokens = s.tokens(), channels = s.channels(), inner = s.inner();
  const Tensor<bf16> xbc(device, tokens, channels), dxbc(device, tokens, channels), y(device, tokens, inner),
      dy(device, tokens, inner), dt(device, tokens, s.heads), ddt(device, tokens, s.heads);
  // Steps of 0.01 to 0.1 and decays as a layer starts with.
  const Tensor<float> a_log(device, 1, s.heads, 0.5, 1.5), d(device, 1, s.heads),
      bias(device, 1, s.heads, 0.5, -4), da_log(device, 1, s.heads), dd(device, 1, s.heads),
      dbias(device, 1, s.heads);
  Ssd forward{.dt_TH = dt.view,
              .a_log_H = a_log.vector(),
              .d_H = d.vector(),
              .dt_bias_H = bias.vector(),
              .y_THP = RealView(y.view).split_last(s.heads, s.width),
              .seq_len = s.seq_len};
  const std::int64_t chunks = s.sequences * chunks_of(s.seq_len, forward.chunk);
  const Buffer states(device, static_cast<std::size_t>(chunks * inner * s.state) * sizeof(float));
  const auto x_of = [&](const Tensor<bf16>& t) {
    return RealView(t.view).cols(0, inner).split_last(s.heads, s.width);
  };
  const auto shared_of = [&](const Tensor<bf16>& t, std::int64_t which) {
    return RealView(t.view).cols(inner + which * s.shared(), s.shared()).split_last(s.groups, s.state);
  };
  forward.x_THP = x_of(xbc);
  forward.b_TGN = shared_of(xbc, 0);
  forward.c_TGN = shared_of(xbc, 1);
  forward.states = View<float>(states.as<float>(), chunks, s.heads, s.width, s.state);
  const SsdBackward backward{.x_THP = forward.x_THP,
                             .b_TGN = forward.b_TGN,
                             .c_TGN = forward.c_TGN,
                             .dt_TH = forward.dt_TH,
                             .a_log_H = forward.a_log_H,
                             .d_H = forward.d_H,
                             .dt_bias_H = forward.dt_bias_H,
                             .states = forward.states,
                             .dy_THP = RealView(dy.view).split_last(s.heads, s.width),
                             .dx_THP = x_of(dxbc),
                             .db_TGN = shared_of(dxbc, 0),
                             .dc_TGN = shared_of(dxbc, 1),
                             .ddt_TH = ddt.view,
                             .da_log_H = da_log.vector(),
                             .dd_H = dd.vector(),
                             .ddt_bias_H = dbias.vector(),
                             .seq_len = s.seq_len};
  const double row = 2.0 * static_cast<double>(tokens), kept = static_cast<double>(states.bytes());
  const double all = row * static_cast<double>(channels + s.heads), out = row * static_cast<double>(inner);
  return {.name = fmt::format("{} h{} p{} g{} n{}", name_of_tokens("scan", s), s.heads, s.width, s.groups,
                              s.state),
          .forward_seconds = fastest(device, budget, [&] { ssd(stream, forward); }),
          .backward_seconds = fastest(device, budget, [&] { ssd_backward(stream, backward); }),
          .forward_bytes = all + out + kept,
          .backward_bytes = 2 * all + out + kept};
}

}  // namespace

std::vector<SsdRate> measure_ssd(Stream& stream, double seconds) {
  std::vector<SsdRate> rates;
  const double budget = seconds / (4 * std::size(kShapes));
  for (const Shape& s : kShapes) {
    rates.push_back(measure_conv(stream, s, budget));
    rates.push_back(measure_scan(stream, s, budget));
  }
  return rates;
}

}  // namespace nibble::cuda
