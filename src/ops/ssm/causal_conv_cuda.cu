// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/any_rows.cuh"
#include "ops/ssm/causal_conv.h"
#include "ops/ssm/device_real_cuda.cuh"

/// Two paths. The fast one, for four taps and rows that can be read in packs, walks a run of tokens with a
/// pack of channels in registers and reads every input once. The general one takes what `check` accepts.
/// Runs are fixed by the problem, and their parts of dw and db are added in their order.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTaps = 4;
/// Tokens that one thread walks; the next run reads the last three of them once more, from cache.
constexpr std::int64_t kRun = 64;
/// Tokens whose loads are issued together.
constexpr int kAhead = 4;

/// The division of the work: blocks are numbered (run of tokens, block of channels).
struct Runs {
  std::int64_t channels, seq_len, runs_of_sequence, runs, channel_blocks;

  template <class Args>
  Runs(const Args& a, int pack)
      : channels(a.x_TC.size(1)),
        seq_len(a.seq_len),
        runs_of_sequence((seq_len + kRun - 1) / kRun),
        runs(a.x_TC.size(0) / seq_len * runs_of_sequence),
        channel_blocks((channels + kThreads * pack - 1) / (kThreads * pack)) {}
  dim3 grid() const { return dim3(static_cast<unsigned>(runs * channel_blocks)); }
};

/// Where a thread of such a block stands.
struct Place {
  std::int64_t run, channel, start, from, count;  ///< start: first token of the sequence; from: within it

  __device__ Place(const Runs& r, int pack) {
    run = blockIdx.x / r.channel_blocks;
    channel = (blockIdx.x % r.channel_blocks * kThreads + threadIdx.x) * pack;
    start = run / r.runs_of_sequence * r.seq_len;
    from = run % r.runs_of_sequence * kRun;
    count = from + kRun < r.seq_len ? kRun : r.seq_len - from;
  }
};

template <int V>
struct Taps {
  float w[kTaps][V], b[V];

  __device__ Taps(const DeviceFloats<const float>& w_CK, const DeviceFloats<const float>& b_C,
                  std::int64_t c) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) w[k][v] = w_CK(c + v, k);
      b[v] = b_C.data == nullptr ? 0.0f : b_C(c + v);
    }
  }
  /// The sum before SiLU of one channel, x of the token itself last.
  __device__ __forceinline__ float sum(int v, float x0, float x1, float x2, float x3) const {
    return fmaf(w[3][v], x3, fmaf(w[2][v], x2, fmaf(w[1][v], x1, fmaf(w[0][v], x0, b[v]))));
  }
};

template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ T* at(std::int64_t t, std::int64_t c) const { return data + t * stride + c; }
};

/// Reads x and writes y once: 4 T C bytes in BF16. 16384 tokens of 6144 channels are 403 MB, 0.10 ms at
/// 4.1 TB/s.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    forward_runs(Runs r, Rows<const T> x, DeviceFloats<const float> w_CK, DeviceFloats<const float> b_C,
                 Rows<T> y) {
  const Place at(r, V);
  if (at.channel >= r.channels) return;
  const Taps<V> taps(w_CK, b_C, at.channel);
  const std::int64_t first = at.start + at.from;
  float rows[kTaps - 1 + kAhead][V] = {};
#pragma unroll
  for (int k = 0; k < kTaps - 1; ++k)
    if (at.from >= kTaps - 1 - k) load_pack(x.at(first - (kTaps - 1) + k, at.channel), rows[k]);
  for (std::int64_t t = 0; t < at.count; t += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (t + i < at.count) load_pack(x.at(first + t + i, at.channel), rows[kTaps - 1 + i]);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t + i >= at.count) break;
      float out[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float s = taps.sum(v, rows[i][v], rows[i + 1][v], rows[i + 2][v], rows[i + 3][v]);
        out[v] = s * sigmoid<T>(s);
      }
      store_pack(y.at(first + t + i, at.channel), out);
    }
#pragma unroll
    for (int k = 0; k < kTaps - 1; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) rows[k][v] = rows[k + kAhead][v];
  }
}

/// Reads x and dy and writes dx once: 6 T C bytes in BF16, and 20 C bytes a run of partial sums, written and
/// read. 16384 tokens of 6144 channels: 604 MB + 63 MB, 0.16 ms. Four channels a thread, not eight: weights,
/// their gradients and two windows of eight channels would leave three warps to a scheduler.
/// dx of a token needs ds of the three after it, so a run computes those of the next one's start again.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    backward_runs(Runs r, Rows<const T> x, Rows<const T> dy, DeviceFloats<const float> w_CK,
                  DeviceFloats<const float> b_C, Rows<T> dx, float* partial) {
  constexpr int kHalo = kTaps - 1;
  const Place at(r, V);
  if (at.channel >= r.channels) return;
  const Taps<V> taps(w_CK, b_C, at.channel);
  const std::int64_t first = at.start + at.from, left = r.seq_len - at.from;
  float rows[kHalo + kAhead][V] = {}, ds[kHalo + kAhead][V] = {};
  float dw[kTaps][V] = {}, db[V] = {};
#pragma unroll
  for (int k = 0; k < kHalo; ++k)
    if (at.from >= kHalo - k) load_pack(x.at(first - kHalo + k, at.channel), rows[k]);
  for (std::int64_t t = 0; t < at.count + kHalo; t += kAhead) {
    float grad[kAhead][V] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (t + i < at.count + kHalo && t + i < left) {
        load_pack(x.at(first + t + i, at.channel), rows[kHalo + i]);
        load_pack(dy.at(first + t + i, at.channel), grad[i]);
      }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool mine = t + i < at.count;
      float out[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float s = taps.sum(v, rows[i][v], rows[i + 1][v], rows[i + 2][v], rows[i + 3][v]);
        const float sg = sigmoid<T>(s);
        const float d = grad[i][v] * sg * fmaf(s, 1.0f - sg, 1.0f);
        ds[kHalo + i][v] = d;
        if (mine) {
          db[v] += d;
#pragma unroll
          for (int k = 0; k < kTaps; ++k) dw[k][v] = fmaf(d, rows[i + k][v], dw[k][v]);
        }
        out[v] =
            fmaf(taps.w[0][v], d,
                 fmaf(taps.w[1][v], ds[i + 2][v], fmaf(taps.w[2][v], ds[i + 1][v], taps.w[3][v] * ds[i][v])));
      }
      if (t + i >= kHalo && t + i - kHalo < at.count)
        store_pack(dx.at(first + t + i - kHalo, at.channel), out);
    }
#pragma unroll
    for (int k = 0; k < kHalo; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        rows[k][v] = rows[k + kAhead][v];
        ds[k][v] = ds[k + kAhead][v];
      }
  }
  float* to = partial + at.run * (kTaps + 1) * r.channels + at.channel;
#pragma unroll
  for (int k = 0; k < kTaps; ++k) store_pack(to + k * r.channels, dw[k]);
  store_pack(to + kTaps * r.channels, db);
}

/// partial is [runs, taps + 1, C], db last. Adds the runs in their order.
__global__ void __launch_bounds__(kThreads)
    add_runs(const float* partial, std::int64_t runs, std::int64_t taps, std::int64_t channels,
             DeviceFloats<float> dw_CK, DeviceFloats<float> db_C) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= (taps + 1) * channels) return;
  const std::int64_t k = at / channels, c = at % channels;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t run = 0; run < runs; ++run) sum += partial[run * (taps + 1) * channels + at];
  if (k < taps)
    dw_CK(c, k) += sum;
  else if (db_C.data != nullptr)
    db_C(c) += sum;
}

/// The sum before SiLU for any number of taps; `within` is the token's place in its sequence.
__device__ float general_sum(const DeviceIn& x, const DeviceFloats<const float>& w_CK,
                             const DeviceFloats<const float>& b_C, std::int64_t taps, std::int64_t t,
                             std::int64_t within, std::int64_t c) {
  float s = b_C.data == nullptr ? 0.0f : b_C(c);
  for (std::int64_t k = 0; k < taps; ++k) {
    const std::int64_t back = taps - 1 - k;
    if (back <= within) s = fmaf(w_CK(c, k), x.get(t - back, c), s);
  }
  return s;
}

__global__ void __launch_bounds__(kThreads)
    forward_general(Runs r, std::int64_t taps, DeviceIn x, DeviceFloats<const float> w_CK,
                    DeviceFloats<const float> b_C, DeviceOut y) {
  const Place at(r, 1);
  if (at.channel >= r.channels) return;
  for (std::int64_t i = 0; i < at.count; ++i) {
    const std::int64_t t = at.start + at.from + i;
    const float s = general_sum(x, w_CK, b_C, taps, t, at.from + i, at.channel);
    y.set(s * sigmoid<float>(s), t, at.channel);
  }
}

/// ds [T, C]: the gradient of the sum before SiLU.
__global__ void __launch_bounds__(kThreads)
    backward_sums(Runs r, std::int64_t taps, DeviceIn x, DeviceIn dy, DeviceFloats<const float> w_CK,
                  DeviceFloats<const float> b_C, float* ds) {
  const Place at(r, 1);
  if (at.channel >= r.channels) return;
  for (std::int64_t i = 0; i < at.count; ++i) {
    const std::int64_t t = at.start + at.from + i;
    const float s = general_sum(x, w_CK, b_C, taps, t, at.from + i, at.channel), sg = sigmoid<float>(s);
    ds[t * r.channels + at.channel] = dy.get(t, at.channel) * sg * fmaf(s, 1.0f - sg, 1.0f);
  }
}

__global__ void __launch_bounds__(kThreads)
    backward_general(Runs r, std::int64_t taps, DeviceIn x, DeviceFloats<const float> w_CK, const float* ds,
                     DeviceOut dx, float* partial) {
  const Place at(r, 1);
  const std::int64_t c = at.channel;
  if (c >= r.channels) return;
  const std::int64_t first = at.start + at.from;
  for (std::int64_t i = 0; i < at.count; ++i) {
    float sum = 0;
    for (std::int64_t ahead = 0; ahead < taps && at.from + i + ahead < r.seq_len; ++ahead)
      sum = fmaf(w_CK(c, taps - 1 - ahead), ds[(first + i + ahead) * r.channels + c], sum);
    dx.set(sum, first + i, c);
  }
  float* to = partial + at.run * (taps + 1) * r.channels + c;
  for (std::int64_t k = 0; k < taps; ++k) {
    const std::int64_t back = taps - 1 - k;
    float sum = 0;
    for (std::int64_t i = 0; i < at.count; ++i)
      if (back <= at.from + i) sum = fmaf(ds[(first + i) * r.channels + c], x.get(first + i - back, c), sum);
    to[k * r.channels] = sum;
  }
  float sum = 0;
  for (std::int64_t i = 0; i < at.count; ++i) sum += ds[(first + i) * r.channels + c];
  to[taps * r.channels] = sum;
}

template <class T, bool kConst>
auto rows_of(const BasicRealView<kConst>& v) {
  using Element = std::conditional_t<kConst, const T, T>;
  return Rows<Element>{static_cast<Element*>(v.data()), v.stride(0)};
}

/// Whether all the matrices have this type and rows that can be read in packs of V.
template <class T, int V, class... Views>
bool fast(std::int64_t channels, std::int64_t taps, const Views&... views) {
  const auto fits = [&](const auto& v) {
    return v.dtype() == dtype_of<T>::value && packs_fit<V>(static_cast<const T*>(v.data()), v.stride(0));
  };
  return taps == kTaps && channels % V == 0 && (fits(views) && ...);
}

template <class T, int V>
void run_fast(Stream& stream, const CausalConv& a) {
  const Runs r(a, V);
  launch(stream, "causal_conv", forward_runs<T, V>, r.grid(), dim3(kThreads), 0, r, rows_of<T>(a.x_TC),
         DeviceFloats<const float>(a.w_CK), DeviceFloats<const float>(a.b_C), rows_of<T>(a.y_TC));
}

template <class T, int V>
void run_fast(Stream& stream, const CausalConvBackward& a, float* partial) {
  const Runs r(a, V);
  launch(stream, "causal_conv_backward", backward_runs<T, V>, r.grid(), dim3(kThreads), 0, r,
         rows_of<T>(a.x_TC), rows_of<T>(a.dy_TC), DeviceFloats<const float>(a.w_CK),
         DeviceFloats<const float>(a.b_C), rows_of<T>(a.dx_TC), partial);
}

void run_general(Stream& stream, const CausalConvBackward& a, float* partial) {
  const Runs r(a, 1);
  const std::int64_t taps = a.w_CK.size(1);
  float* ds = stream.scratch().take<float>(a.x_TC.size(0), r.channels).data();
  launch(stream, "causal_conv_backward", backward_sums, r.grid(), dim3(kThreads), 0, r, taps,
         DeviceIn(a.x_TC), DeviceIn(a.dy_TC), DeviceFloats<const float>(a.w_CK),
         DeviceFloats<const float>(a.b_C), ds);
  launch(stream, "causal_conv_backward", backward_general, r.grid(), dim3(kThreads), 0, r, taps,
         DeviceIn(a.x_TC), DeviceFloats<const float>(a.w_CK), ds, DeviceOut(a.dx_TC), partial);
}

}  // namespace

void run(Stream& stream, const CausalConv& a) {
  const std::int64_t channels = a.x_TC.size(1), taps = a.w_CK.size(1);
  if (fast<bf16, 8>(channels, taps, a.x_TC, a.y_TC)) return run_fast<bf16, 8>(stream, a);
  if (fast<float, 4>(channels, taps, a.x_TC, a.y_TC)) return run_fast<float, 4>(stream, a);
  const Runs r(a, 1);
  launch(stream, "causal_conv", forward_general, r.grid(), dim3(kThreads), 0, r, taps, DeviceIn(a.x_TC),
         DeviceFloats<const float>(a.w_CK), DeviceFloats<const float>(a.b_C), DeviceOut(a.y_TC));
}

void run(Stream& stream, const CausalConvBackward& a) {
  const std::int64_t channels = a.x_TC.size(1), taps = a.w_CK.size(1);
  const ArenaScope scope(stream.scratch());
  const Runs r(a, 1);
  float* partial = stream.scratch().take<float>(r.runs, taps + 1, channels).data();
  if (fast<bf16, 4>(channels, taps, a.x_TC, a.dy_TC, a.dx_TC))
    run_fast<bf16, 4>(stream, a, partial);
  else if (fast<float, 4>(channels, taps, a.x_TC, a.dy_TC, a.dx_TC))
    run_fast<float, 4>(stream, a, partial);
  else
    run_general(stream, a, partial);
  launch(stream, "causal_conv_backward", add_runs, dim3(blocks_for((taps + 1) * channels, kThreads)),
         dim3(kThreads), 0, partial, r.runs, taps, channels, DeviceFloats<float>(a.dw_CK),
         DeviceFloats<float>(a.db_C));
}

}  // namespace nibble::cuda
