// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kernel.cuh"
#include "ops/attention/attention_cuda.h"

// Our own kernels, for what cuDNN is not asked or refuses: FP32 storage, odd widths and strides, short
// sequences. A block owns a tile of tokens of one head and walks over the tiles of the other side; tiles lie
// in shared memory as FP32. A block of 16 x 16 threads holds a square tile of scores in registers, M x M a
// thread: rows ty M + m, columns tx + 16 n. Bounded by FP32 arithmetic: forward 4 T S H D / 2 operations,
// backward 14.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kSide = 16;

/// A view [tokens, heads, width] as kernels read and write it, F32 or BF16.
struct Heads {
  void* data;
  std::int64_t token, head;  ///< strides, in elements
  bool is_bf16;
  bool fours;  ///< groups of four channels are aligned

  __device__ std::int64_t at(std::int64_t t, int h) const { return t * token + h * head; }
  __device__ float get(std::int64_t i) const {
    return is_bf16 ? static_cast<const bf16*>(data)[i].value() : static_cast<const float*>(data)[i];
  }
  __device__ void set(std::int64_t i, float x) const {
    if (is_bf16)
      static_cast<bf16*>(data)[i] = bf16::nearest(x);
    else
      static_cast<float*>(data)[i] = x;
  }
  __device__ void get4(std::int64_t i, float (&x)[4]) const {
    if (is_bf16)
      load_pack(static_cast<const bf16*>(data) + i, x);
    else
      load_pack(static_cast<const float*>(data) + i, x);
  }
  __device__ void set4(std::int64_t i, const float (&x)[4]) const {
    if (is_bf16)
      store_pack(static_cast<bf16*>(data) + i, x);
    else
      store_pack(static_cast<float*>(data) + i, x);
  }
};

template <class View>
Heads heads_of(const View& v) {
  const std::size_t four = 4 * size_of(v.dtype());
  return {.data = const_cast<void*>(static_cast<const void*>(v.data())),
          .token = v.stride(0),
          .head = v.stride(1),
          .is_bf16 = v.dtype() == DType::BF16,
          .fours = reinterpret_cast<std::uintptr_t>(v.data()) % four == 0 && v.size(2) % 4 == 0 &&
                   v.stride(0) % 4 == 0 && v.stride(1) % 4 == 0};
}

struct LseRows {
  float* data;
  std::int64_t head, token;
  __device__ float& operator()(int h, std::int64_t t) const { return data[h * head + t * token]; }
};

struct Problem {
  std::int64_t seq_len, sequences, tiles;
  int heads, groups, width;
  float scale;
  Heads q, k, v, out;
  LseRows lse;
  Heads dout, dq, dk, dv;  ///< backward
  const float* delta_HT;
};

/// Rows of a tile in shared memory are four floats longer: a step from row to row moves on by four banks.
template <int D>
constexpr int kRow = D + 4;

/// Tokens first to first + kRows of one head, zeros beyond the sequence and beyond the width.
template <int kRows, int D>
__device__ void load_tile(const Heads& x, std::int64_t sequence_start, std::int64_t first,
                          std::int64_t seq_len, int h, int width, float* tile) {
  for (int i = threadIdx.x; i < kRows * (D / 4); i += kThreads) {
    const int r = i / (D / 4), d = i % (D / 4) * 4;
    float x4[4] = {0, 0, 0, 0};
    if (first + r < seq_len && d < width) {
      const std::int64_t from = x.at(sequence_start + first + r, h) + d;
      if (x.fours) {
        x.get4(from, x4);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (d + c < width) x4[c] = x.get(from + c);
      }
    }
    *reinterpret_cast<float4*>(tile + r * kRow<D> + d) = make_float4(x4[0], x4[1], x4[2], x4[3]);
  }
}

/// s[m][n] = sum over d of x[own row m][d] y[column n][d]
template <int M, int D>
__device__ void dot_tiles(const float* x, const float* y, float (&s)[M][M]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < M; ++n) s[m][n] = 0;
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    float4 a[M], b[M];
#pragma unroll
    for (int m = 0; m < M; ++m) a[m] = *reinterpret_cast<const float4*>(x + (ty * M + m) * kRow<D> + d);
#pragma unroll
    for (int n = 0; n < M; ++n) b[n] = *reinterpret_cast<const float4*>(y + (tx + kSide * n) * kRow<D> + d);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < M; ++n)
        s[m][n] =
            fmaf(a[m].w, b[n].w, fmaf(a[m].z, b[n].z, fmaf(a[m].y, b[n].y, fmaf(a[m].x, b[n].x, s[m][n]))));
  }
}

/// Puts the scores of a thread where all of its row find them.
template <int M>
__device__ void store_scores(const float (&s)[M][M], float* p) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < M; ++n) p[(ty * M + m) * kRow<kSide * M> + tx + kSide * n] = s[m][n];
}

/// Of the D channels a thread holds four of every 64: channel(c) for c in [0, D / 16).
__device__ __forceinline__ int channel(int c) {
  return static_cast<int>(threadIdx.x % kSide) * 4 + c / 4 * 64 + c % 4;
}

/// acc[m][c] += sum over k of p[own row m][k] x[k][channel c]
template <int M, int D>
__device__ void add_product(const float* p, const float* x, float (&acc)[M][D / kSide]) {
  const int ty = threadIdx.x / kSide;
#pragma unroll 1
  for (int k = 0; k < kSide * M; k += 4) {
    float w[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const float4 four = *reinterpret_cast<const float4*>(p + (ty * M + m) * kRow<kSide * M> + k);
      w[m][0] = four.x, w[m][1] = four.y, w[m][2] = four.z, w[m][3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < D / kSide; c += 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + (k + i) * kRow<D> + channel(c));
#pragma unroll
        for (int m = 0; m < M; ++m) {
          acc[m][c] = fmaf(w[m][i], v.x, acc[m][c]);
          acc[m][c + 1] = fmaf(w[m][i], v.y, acc[m][c + 1]);
          acc[m][c + 2] = fmaf(w[m][i], v.z, acc[m][c + 2]);
          acc[m][c + 3] = fmaf(w[m][i], v.w, acc[m][c + 3]);
        }
      }
  }
}

/// Writes factor[m] times the accumulators of the tile that starts at token `first` of the sequence.
template <int M, int D>
__device__ void write_tile(const float (&acc)[M][D / kSide], const float (&factor)[M], const Heads& to,
                           std::int64_t sequence_start, std::int64_t first, std::int64_t seq_len, int h,
                           int width) {
  const int ty = threadIdx.x / kSide;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    if (first + ty * M + m >= seq_len) continue;
    const std::int64_t row = to.at(sequence_start + first + ty * M + m, h);
#pragma unroll
    for (int c = 0; c < D / kSide; c += 4) {
      const float x[4] = {acc[m][c] * factor[m], acc[m][c + 1] * factor[m], acc[m][c + 2] * factor[m],
                          acc[m][c + 3] * factor[m]};
      const int d = channel(c);
      if (to.fours) {
        if (d < width) to.set4(row + d, x);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (d + i < width) to.set(row + d + i, x[i]);
      }
    }
  }
}

/// Over the 16 threads of a row.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

/// One tile of queries of one head against all tiles of keys up to it. Tiles with the most keys start first.
template <int M, int D>
__global__ void __launch_bounds__(kThreads) forward_kernel(Problem a) {
  constexpr int kTile = kSide * M;
  extern __shared__ float shared[];
  float *q = shared, *other = q + kTile * kRow<D>, *p = other + kTile * kRow<D>;
  const std::int64_t lines = a.sequences * a.heads, line = blockIdx.x % lines;
  const std::int64_t tile = a.tiles - 1 - blockIdx.x / lines, first = tile * kTile;
  const int h = static_cast<int>(line % a.heads), g = h / (a.heads / a.groups);
  const std::int64_t start = line / a.heads * a.seq_len;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;

  float acc[M][D / kSide], largest[M], sum[M], s[M][M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    largest[m] = -INFINITY;
    sum[m] = 0;
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) acc[m][c] = 0;
  }
  load_tile<kTile, D>(a.q, start, first, a.seq_len, h, a.width, q);
  for (std::int64_t j = 0; j <= tile; ++j) {
    load_tile<kTile, D>(a.k, start, j * kTile, a.seq_len, g, a.width, other);
    __syncthreads();
    dot_tiles<M, D>(q, other, s);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const int row = ty * M + m;
      float most = largest[m], added = 0;
#pragma unroll
      for (int n = 0; n < M; ++n) {
        // On the diagonal the first column is seen by every row, so the maximum is finite from there on.
        s[m][n] = j < tile || tx + kSide * n <= row ? s[m][n] * a.scale : -INFINITY;
        most = fmaxf(most, s[m][n]);
      }
      most = row_max(most);
      const float rescale = expf(largest[m] - most);
      largest[m] = most;
#pragma unroll
      for (int n = 0; n < M; ++n) {
        s[m][n] = expf(s[m][n] - most);
        added += s[m][n];
      }
      sum[m] = fmaf(sum[m], rescale, row_sum(added));
#pragma unroll
      for (int c = 0; c < D / kSide; ++c) acc[m][c] *= rescale;
    }
    store_scores<M>(s, p);
    __syncthreads();  // everybody has read the keys
    load_tile<kTile, D>(a.v, start, j * kTile, a.seq_len, g, a.width, other);
    __syncthreads();
    add_product<M, D>(p, other, acc);
    __syncthreads();
  }
  float factor[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    factor[m] = 1 / sum[m];
    const std::int64_t t = first + ty * M + m;
    if (tx == 0 && t < a.seq_len) a.lse(h, start + t) = largest[m] + logf(sum[m]);
  }
  write_tile<M, D>(acc, factor, a.out, start, first, a.seq_len, h, a.width);
}

/// delta[h, t] = out[t, h] . dout[t, h], a thread each, added in the order of dot_tiles: where a query sees
/// one key only, out is that key's value, and dP - delta is then exactly zero as it should be.
__global__ void __launch_bounds__(kThreads) delta_kernel(Problem a, float* delta_HT) {
  const std::int64_t tokens = a.sequences * a.seq_len;
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens * a.heads) return;
  const std::int64_t t = i / a.heads;
  const int h = static_cast<int>(i % a.heads);
  const std::int64_t out = a.out.at(t, h), dout = a.dout.at(t, h);
  float sum = 0;
  if (a.out.fours && a.dout.fours) {
    for (int d = 0; d < a.width; d += 4) {
      float x[4], y[4];
      a.out.get4(out + d, x);
      a.dout.get4(dout + d, y);
#pragma unroll
      for (int c = 0; c < 4; ++c) sum = fmaf(x[c], y[c], sum);
    }
  } else {
    for (int d = 0; d < a.width; ++d) sum = fmaf(a.out.get(out + d), a.dout.get(dout + d), sum);
  }
  delta_HT[h * tokens + t] = sum;
}

/// s and dp (dot products, own rows against other columns) become probabilities and the gradient of scores.
/// `own` and `other` are the first tokens of the two tiles within the sequence.
template <int M, bool kKeys>
__device__ void scores_backward(const Problem& a, std::int64_t start, int h, std::int64_t own,
                                std::int64_t other, float (&s)[M][M], float (&dp)[M][M]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const std::int64_t tokens = a.sequences * a.seq_len;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < M; ++n) {
      const std::int64_t row = own + ty * M + m, column = other + tx + kSide * n;
      const std::int64_t query = kKeys ? column : row, key = kKeys ? row : column;
      if (key <= query && query < a.seq_len) {
        s[m][n] = expf(fmaf(s[m][n], a.scale, -a.lse(h, start + query)));
        dp[m][n] = s[m][n] * (dp[m][n] - a.delta_HT[h * tokens + start + query]);
      } else {
        s[m][n] = dp[m][n] = 0;
      }
    }
}

/// kKeys false: one tile of queries of a head, its dq. kKeys true: one tile of keys of a group, its dk and dv
/// summed over the queries of the group's heads in order. Both need
///   s = own x^T, dp = own_too y^T   with own, own_too = q, dout and x, y = k, v   (or the other way round)
template <int M, int D, bool kKeys>
__global__ void __launch_bounds__(kThreads) backward_kernel(Problem a) {
  constexpr int kTile = kSide * M;
  extern __shared__ float shared[];
  float *own = shared, *own_too = own + kTile * kRow<D>, *x = own_too + kTile * kRow<D>,
        *y = x + kTile * kRow<D>, *p = y + kTile * kRow<D>;
  const int per_group = a.heads / a.groups, own_heads = kKeys ? a.groups : a.heads;
  const std::int64_t lines = a.sequences * own_heads, line = blockIdx.x % lines;
  const std::int64_t order = blockIdx.x / lines, tile = kKeys ? order : a.tiles - 1 - order;
  const int own_head = static_cast<int>(line % own_heads);
  const std::int64_t start = line / own_heads * a.seq_len, first = tile * kTile;

  float acc[M][D / kSide], acc_v[M][D / kSide], s[M][M], dp[M][M];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int c = 0; c < D / kSide; ++c) acc[m][c] = acc_v[m][c] = 0;
  load_tile<kTile, D>(kKeys ? a.k : a.q, start, first, a.seq_len, own_head, a.width, own);
  load_tile<kTile, D>(kKeys ? a.v : a.dout, start, first, a.seq_len, own_head, a.width, own_too);
  const int first_head = kKeys ? own_head * per_group : own_head;
  const int last_head = kKeys ? first_head + per_group : first_head + 1;
  for (int h = first_head; h < last_head; ++h) {
    const int other_head = kKeys ? h : h / per_group;
    for (std::int64_t j = kKeys ? tile : 0; j < (kKeys ? a.tiles : tile + 1); ++j) {
      load_tile<kTile, D>(kKeys ? a.q : a.k, start, j * kTile, a.seq_len, other_head, a.width, x);
      load_tile<kTile, D>(kKeys ? a.dout : a.v, start, j * kTile, a.seq_len, other_head, a.width, y);
      __syncthreads();
      dot_tiles<M, D>(own, x, s);
      dot_tiles<M, D>(own_too, y, dp);
      scores_backward<M, kKeys>(a, start, h, first, j * kTile, s, dp);
      if constexpr (kKeys) {
        store_scores<M>(s, p);
        __syncthreads();
        add_product<M, D>(p, y, acc_v);
        __syncthreads();  // everybody has read the probabilities
      }
      store_scores<M>(dp, p);
      __syncthreads();
      add_product<M, D>(p, x, acc);
      __syncthreads();
    }
  }
  float scale[M], one[M];
#pragma unroll
  for (int m = 0; m < M; ++m) scale[m] = a.scale, one[m] = 1;
  write_tile<M, D>(acc, scale, kKeys ? a.dk : a.dq, start, first, a.seq_len, own_head, a.width);
  if constexpr (kKeys) write_tile<M, D>(acc_v, one, a.dv, start, first, a.seq_len, own_head, a.width);
}

template <class Args>
Problem problem_of(const Args& a) {
  return {.seq_len = a.seq_len,
          .sequences = a.q_THD.size(0) / a.seq_len,
          .heads = static_cast<int>(a.q_THD.size(1)),
          .groups = static_cast<int>(a.k_TGD.size(1)),
          .width = static_cast<int>(a.q_THD.size(2)),
          .scale = a.scale,
          .q = heads_of(a.q_THD),
          .k = heads_of(a.k_TGD),
          .v = heads_of(a.v_TGD),
          .out = heads_of(a.out_THD),
          .lse = {const_cast<float*>(a.lse_HT.data()), a.lse_HT.stride(0), a.lse_HT.stride(1)}};
}

/// One block for each tile of each head of each sequence.
void launch_tiles(Stream& stream, const char* op, void (*kernel)(Problem), Problem a, int tile, int heads,
                  std::size_t shared_floats) {
  a.tiles = (a.seq_len + tile - 1) / tile;
  const std::int64_t blocks = a.tiles * a.sequences * heads;
  launch(stream, op, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
         shared_floats * sizeof(float), a);
}

template <int M, int D>
void forward_tiles(Stream& stream, const Problem& a) {
  constexpr int kTile = kSide * M;
  launch_tiles(stream, "attention", forward_kernel<M, D>, a, kTile, a.heads,
               kTile * (2 * kRow<D> + kRow<kTile>));
}

template <int M, int D>
void backward_tiles(Stream& stream, const Problem& a) {
  constexpr int kTile = kSide * M;
  constexpr std::size_t kFloats = kTile * (4 * kRow<D> + kRow<kTile>);
  launch_tiles(stream, "attention_backward", backward_kernel<M, D, false>, a, kTile, a.heads, kFloats);
  launch_tiles(stream, "attention_backward", backward_kernel<M, D, true>, a, kTile, a.groups, kFloats);
}

__global__ void __launch_bounds__(kThreads)
    pack_lse_kernel(const float* from, std::int64_t of_head, std::int64_t of_token, std::int64_t heads,
                    std::int64_t seq_len, std::int64_t count, float* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t s = i % seq_len, h = i / seq_len % heads, b = i / seq_len / heads;
  to[i] = from[h * of_head + (b * seq_len + s) * of_token];
}

}  // namespace

// Tiles are as large as the shared memory of the smallest supported card (99 KiB a block) allows.
void own_attention(Stream& stream, const Attention& args) {
  if (args.q_THD.numel() == 0) return;
  const Problem a = problem_of(args);
  if (a.width <= 64)
    forward_tiles<4, 64>(stream, a);
  else if (a.width <= 128)
    forward_tiles<4, 128>(stream, a);
  else
    forward_tiles<2, 256>(stream, a);
}

void own_attention(Stream& stream, const AttentionBackward& args) {
  if (args.q_THD.numel() == 0) return;
  Problem a = problem_of(args);
  const std::int64_t rows = a.sequences * a.seq_len * a.heads;
  const ArenaScope scope(stream.scratch());
  float* delta_HT = stream.scratch().take<float>(rows).data();
  a.dout = heads_of(args.dout_THD);
  a.dq = heads_of(args.dq_THD);
  a.dk = heads_of(args.dk_TGD);
  a.dv = heads_of(args.dv_TGD);
  a.delta_HT = delta_HT;
  launch(stream, "attention_backward", delta_kernel, dim3(blocks_for(rows, kThreads)), dim3(kThreads), 0, a,
         delta_HT);
  if (a.width <= 64)
    backward_tiles<4, 64>(stream, a);
  else if (a.width <= 128)
    backward_tiles<2, 128>(stream, a);
  else
    backward_tiles<1, 256>(stream, a);
}

void pack_lse(Stream& stream, View<const float> lse_HT, std::int64_t seq_len, float* packed) {
  const std::int64_t count = lse_HT.numel();
  launch(stream, "attention_backward", pack_lse_kernel, dim3(blocks_for(count, kThreads)), dim3(kThreads), 0,
         lse_HT.data(), lse_HT.stride(0), lse_HT.stride(1), lse_HT.size(0), seq_len, count, packed);
}

}  // namespace nibble::cuda
