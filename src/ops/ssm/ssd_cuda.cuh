// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/ssm/device_real_cuda.cuh"
#include "ops/ssm/mma_cuda.cuh"
#include "ops/ssm/ssd.h"

/// The scan on tensor cores: what its kernels share. For BF16 storage, heads of 64 channels, states of 64 or
/// 128, chunks of whole pieces; everything else takes the general path (ssd_general_cuda.cu).
///
/// Tokens are worked on in pieces of 128, whatever the chunk: a chunk says only where `states` are kept. A
/// piece is eight runs of sixteen tokens, the side of a matrix fragment. The decay from token s to token t of
/// a later run is the product of three numbers in [0, 1]: from s to the end of its run, over the runs
/// between, and from the start of its run to t; inside a run it comes from a masked cumulative sum. So no
/// decay is the difference of two sums, and no exponential is taken per pair but in the eight runs of the
/// diagonal.
///
/// Rounding. Sums are FP32. x, B, C, dy enter products as they are stored. These are rounded to BF16 once,
/// relative error u = 2^-9, because the tensor cores take BF16:
///   forward:  scores M[t,s] = C_t.B_s decay dt_s;  decay dt_s x_s in the sums that make states;  states
///   backward: scores without dt;  decay dt_s x_s and decay dy_t in the sums that make states and their
///             gradients;  both of those;  dK, the gradient of C_t.B_s, after its sum over the heads of a
///             group
/// So a term of y carries at most two of these roundings (x in the state, then the state), as does one of dx,
/// dB and dC (dy in the gradient of the state, then that gradient; or x and the state); a term of ddt, da_log
/// and ddt_bias, where a gradient meets a state, at most three:
///   |y, dx, dB, dC - exact| <= 2u sum|terms|,   |ddt, da_log, ddt_bias - exact| <= 3u sum|terms|   (1 +
///   O(u)),
/// plus n 2^-24 of the same sums from the FP32 additions. The roundings are independent, so the error seen is
/// about u times the root of the sum of squares of the terms: 2^-9 of a result's usual size.
namespace nibble::cuda {

inline constexpr int kSsdWidth = 64;                  ///< channels of a head
inline constexpr int kSsdPiece = 128;                 ///< tokens
inline constexpr int kSsdRun = 16;                    ///< tokens of a run
inline constexpr int kSsdRuns = kSsdPiece / kSsdRun;  ///< of a piece; one warp each
inline constexpr int kSsdThreads = kSsdRuns * kWarp;
inline constexpr int kSsdXRow = kSsdWidth + 8;  ///< elements of a row of x in shared memory: 16 bytes
                                                ///< of gap keep rows in different banks
template <int N>
inline constexpr int kSsdNRow = N + 8;  ///< the same for B, C and states

struct SsdShape {
  std::int64_t heads, groups, per_group, seq_len, sequences;
  std::int64_t pieces;     ///< of a sequence
  std::int64_t keep_each;  ///< pieces of a chunk

  template <class Args>
  explicit SsdShape(const Args& a)
      : heads(a.x_THP.size(1)),
        groups(a.b_TGN.size(1)),
        per_group(heads / groups),
        seq_len(a.seq_len),
        sequences(a.x_THP.size(0) / seq_len),
        pieces((seq_len + kSsdPiece - 1) / kSsdPiece),
        keep_each(seq_len <= a.chunk ? pieces : a.chunk / kSsdPiece) {}
  std::int64_t all_pieces() const { return sequences * pieces; }
};

/// A piece of tokens as a block finds it.
struct SsdPiece {
  std::int64_t first;  ///< token of the matrix
  int used;            ///< tokens; the rest of the piece counts as zeros
  __device__ SsdPiece(const SsdShape& s, std::int64_t piece) {
    const std::int64_t within = piece % s.pieces * kSsdPiece;
    first = piece / s.pieces * s.seq_len + within;
    used = static_cast<int>(min(static_cast<std::int64_t>(kSsdPiece), s.seq_len - within));
  }
};

/// What is known of a head's decays in a piece: arrays of kSsdPiece floats at these offsets, made once by
/// ssd_steps. "In" is from before a token's run or piece to the token itself, "out" from the token to the
/// end.
struct SsdRecord {
  static constexpr int kDt = 0, kSlope = 1 * kSsdPiece, kLog = 2 * kSsdPiece, kRunIn = 3 * kSsdPiece,
                       kRunOut = 4 * kSsdPiece, kIn = 5 * kSsdPiece, kOut = 6 * kSsdPiece,
                       kOutDt = 7 * kSsdPiece;
  static constexpr int kRunAll = 8 * kSsdPiece;    ///< [kSsdRuns], each run's whole decay
  static constexpr int kAll = kRunAll + kSsdRuns;  ///< the piece's
  static constexpr int kFloats = kRunAll + kSsdRun;
  static_assert(kAll % 4 == 0 && kFloats % 4 == 0, "both are copied sixteen bytes at a time");
};

/// BF16 [tokens, heads or groups, contiguous], every row aligned to 16 bytes.
template <class T>
struct SsdRows {
  T* data;
  std::int64_t token, head;

  template <bool kConst>
  explicit SsdRows(const BasicRealView<kConst>& v)
      : data(static_cast<T*>(v.data())), token(v.stride(0)), head(v.stride(1)) {}
  __device__ T* at(std::int64_t t, std::int64_t h) const { return data + t * token + h * head; }
};
using SsdIn = SsdRows<const bf16>;
using SsdOut = SsdRows<bf16>;

/// Starts copying kRows rows of kCols elements into a tile with rows of kStride; zeros from row `used` on. By
/// a block of kThreads.
template <int kThreads, int kRows, int kCols, int kStride>
__device__ __forceinline__ void copy_rows(bf16* tile, const bf16* from, std::int64_t stride, int used) {
  constexpr int kParts = kCols / 8, kRowsAtOnce = kThreads / kParts;
  static_assert(kThreads % kParts == 0 && kRows % kRowsAtOnce == 0);
  const int first = static_cast<int>(threadIdx.x) / kParts, col = static_cast<int>(threadIdx.x) % kParts * 8;
  const bf16* row = from + first * stride + col;
  tile += first * kStride + col;
#pragma unroll
  for (int i = 0; i < kRows; i += kRowsAtOnce, row += kRowsAtOnce * stride) {
    const bool valid = first + i < used;
    copy_async(tile + i * kStride, valid ? row : from, valid);
  }
}
template <int kThreads, int kCount>
__device__ __forceinline__ void copy_floats(float* to, const float* from) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4 * kThreads) {
    const int at = i + 4 * static_cast<int>(threadIdx.x);
    if (at < kCount) copy_async(to + at, from + at);
  }
}
__device__ __forceinline__ float2 load_pair(const float* p) { return *reinterpret_cast<const float2*>(p); }

/// Left operand from a tile [row, k], its corner at `tile`.
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(a, tile + lane % 16 * stride + lane / 16 * 8);
}
/// Left operand from a tile [k, row].
__device__ __forceinline__ void load_a_turned(std::uint32_t (&a)[4], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices_turned(a, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
}
/// Right operands of two neighbouring 16 x 8 products, b[0..1] and b[2..3], from a tile [column, k].
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(b, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
}
/// The same from a tile [k, column].
__device__ __forceinline__ void load_b_turned(std::uint32_t (&b)[4], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices_turned(b, tile + lane % 16 * stride + lane / 16 * 8);
}

/// sums[j] += a times columns 8j to 8j + 7 of a tile [k, column], for 16 rows of k.
template <int kTiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][4], const std::uint32_t (&a)[4],
                                              const bf16* tile, int stride) {
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    std::uint32_t b[4];
    load_b_turned(b, tile + j * 8, stride);
    multiply_add(sums[j], a, b[0], b[1]);
    multiply_add(sums[j + 1], a, b[2], b[3]);
  }
}
/// sums[j] += a times rows 8j to 8j + 7 of a tile [column, k], for 16 columns of it.
template <int kTiles>
__device__ __forceinline__ void multiply_cols(float (&sums)[kTiles][4], const std::uint32_t (&a)[4],
                                              const bf16* tile, int stride) {
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    std::uint32_t b[4];
    load_b(b, tile + j * 8 * stride, stride);
    multiply_add(sums[j], a, b[0], b[1]);
    multiply_add(sums[j + 1], a, b[2], b[3]);
  }
}

/// Decays inside one run, by one warp: table[s, t] = exp(sum of log over s < r <= t), 0 where t < s.
inline constexpr int kSsdTableRow = kSsdRun + 1;
__device__ __forceinline__ void fill_decay_table(float* table, const float* log_of_run) {
  const int s = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
  if (s < kSsdRun) {
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kSsdRun; ++t) {
      if (t > s) sum += log_of_run[t];
      table[s * kSsdTableRow + t] = t < s ? 0.0f : expf(sum);
    }
  }
  __syncwarp();
}

/// Writes sixteen rows that a warp holds as sums, through its own [16, kStride] of shared memory, in whole
/// lines.
template <int kTiles, int kStride>
__device__ __forceinline__ void store_rows(const float (&sums)[kTiles][4], bf16* staging, bf16* to,
                                           std::int64_t stride, int used) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    *reinterpret_cast<std::uint32_t*>(staging + g * kStride + j * 8 + 2 * q) =
        pack_bf16(sums[j][0], sums[j][1]);
    *reinterpret_cast<std::uint32_t*>(staging + (g + 8) * kStride + j * 8 + 2 * q) =
        pack_bf16(sums[j][2], sums[j][3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < kSsdRun * kTiles; i += kWarp) {
    const int row = i / kTiles, col = i % kTiles * 8;
    if (row < used)
      *reinterpret_cast<uint4*>(to + row * stride + col) =
          *reinterpret_cast<const uint4*>(staging + row * kStride + col);
  }
  __syncwarp();
}

/// The sum over the four lanes of a row, on all of them.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// Warps take runs in this order, so that the two that share a scheduler have nine tiles of pairs together.
__device__ __forceinline__ int run_of_warp() {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  return warp < kSsdRuns / 2 ? warp : kSsdRuns - 1 - (warp - kSsdRuns / 2);
}

/// Fills records [all pieces, H, SsdRecord::kFloats].
struct SsdStepRule {
  DeviceIn dt_TH;
  DeviceFloats<const float> a_log_H, dt_bias_H;
  float dt_min, dt_max;

  template <class Args>
  explicit SsdStepRule(const Args& a)
      : dt_TH(a.dt_TH), a_log_H(a.a_log_H), dt_bias_H(a.dt_bias_H), dt_min(a.dt_min), dt_max(a.dt_max) {}
};
/// a = -exp(a_log), kept finite so that a step of 0 gives no NaN.
__device__ __forceinline__ float ssd_slope_a(float a_log) {
  return -fminf(expf(a_log), 3.4028234663852886e38f);
}

struct SsdStep {
  float dt, slope;  ///< slope: d dt / d dt_raw, 0 where limited
};
__device__ __forceinline__ SsdStep ssd_step(const SsdStepRule& r, std::int64_t t, std::int64_t h) {
  const float z = r.dt_TH.get(t, h) + r.dt_bias_H(h);
  const float softplus = fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z)));
  const float low = softplus < r.dt_min ? r.dt_min : softplus;
  const float dt = low > r.dt_max ? r.dt_max : low;
  return {dt, dt == softplus ? 1.0f / (1.0f + expf(-z)) : 0.0f};
}

/// Shared memory that a block of the largest kernel asks for: what an A100 has. Cards with less take the
/// general path.
inline constexpr std::size_t kSsdSharedBytes = 163 * 1024;

/// Whether the tensor-core path takes these arguments on the current device.
bool ssd_fast(const Ssd&);
bool ssd_fast(const SsdBackward&);

void ssd_general(Stream&, const Ssd&);
void ssd_general(Stream&, const SsdBackward&);

/// The kernels that both passes launch. state_size is 64 or 128.
void ssd_steps(Stream&, const SsdShape&, const SsdStepRule&, float* records);

/// The recurrence over the pieces of every sequence, in order (states) or against it (their gradients):
///   before piece: out = state;  state = decay of the piece * state + sum over its tokens of scale rows
///   cols^T
struct SsdCarry {
  SsdIn rows;  ///< x, or dy
  SsdIn cols;  ///< B, or C
  const float* records;
  bf16* out;           ///< [all pieces, H, P, N]: state before, or gradient after, each piece
  float* kept;         ///< in order: the states before every chunk; may be null
  const bf16* states;  ///< against the order: the states before each piece
  float* through;      ///< against the order, [all pieces, H, 8]: parts of the dot product gradient.state
};
inline constexpr int kSsdThroughParts = 8;
void ssd_carry(Stream&, const SsdShape&, std::int64_t state_size, bool backward, const SsdCarry&);

/// What the kernels of the backward pass leave for the last one: arrays of kSsdPiece floats at these offsets
/// in [all pieces, H, kFloats].
struct SsdSums {
  static constexpr int kPairs = 0;                ///< by token r: what pairs across r say of its log decay
  static constexpr int kXDot = 1 * kSsdPiece;     ///< sum over channels of x d(dt x)
  static constexpr int kXDotDy = 2 * kSsdPiece;   ///< sum over channels of x dy
  static constexpr int kFromIn = 3 * kSsdPiece;   ///< dy y from the state before
  static constexpr int kFromOut = 4 * kSsdPiece;  ///< dt x d(dt x) from the state after
  static constexpr int kFloats = 5 * kSsdPiece;
};

/// dB or dC of the heads of a group: from the states, then from the pairs.
struct SsdShared {
  SsdIn rows;          ///< dC: dy; dB: x
  int scale;           ///< dC: SsdRecord::kIn; dB: SsdRecord::kOutDt
  const bf16* states;  ///< dC: states before; dB: gradients after each piece
  SsdIn own, other;    ///< dC: C, B; dB: B, C
  SsdOut out;
  int dots;  ///< dC: SsdSums::kFromIn; dB: SsdSums::kFromOut
};
void ssd_shared_gradients(Stream&, const SsdShape&, std::int64_t state_size, const float* records,
                          const bf16* dk, float* sums, const SsdShared& db, const SsdShared& dc);

/// ddt, and each piece's part of the parameters' gradients, [all pieces, H, 3]: sum dt dlog, dd, ddt_bias.
void ssd_finish(Stream&, const SsdShape&, const SsdStepRule&, const float* records, const float* sums,
                const float* through, std::int64_t through_parts, DeviceOut ddt_TH, float* parts);

/// Adds `count` parts of each head, [count, H, 3], in an order fixed by their number.
void ssd_add_parameters(Stream&, const SsdBackward&, std::int64_t count, const float* parts);

}  // namespace nibble::cuda
