// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cuda.cuh"

namespace nibble::cuda {
namespace {

template <int N>
struct Shared {
  struct Head {
    bf16 x[kSsdPiece * kSsdXRow], dy[kSsdPiece * kSsdXRow], grad[kSsdWidth * kSsdNRow<N>];
    float record[SsdRecord::kFloats];
  } heads[2];
  bf16 b[kSsdPiece * kSsdNRow<N>];
  float table[kSsdRuns][kSsdRun * kSsdTableRow];
  float to_token[kSsdRuns][kSsdPiece];  ///< [run of s, t]: sum over s of the run of w[s, t], t in later runs
  float of_runs[kSsdRuns][kSsdRuns];    ///< [run of t, run of s]: the same summed over t
  float from_token[kSsdPiece];          ///< sum over t in later runs of w[s, t]
  float same_run[kSsdPiece];            ///< by token r: sum over t >= r, s < r of w[s, t], all in one run
};

struct Pairs {
  SsdIn x, b, c, dy;
  DeviceFloats<const float> d_H;
  const float* records;
  const bf16* grads;  ///< of the states after the pieces
  SsdOut dx;
  bf16* dk;     ///< [all pieces, G, s, t], t in no earlier run than s
  float* sums;  ///< [all pieces, H, SsdSums::kFloats]
};

template <int N>
__device__ void fetch_head(typename Shared<N>::Head& to, const SsdShape& s, const Pairs& o,
                           const SsdPiece& at, std::int64_t piece, std::int64_t h) {
  copy_rows<kSsdThreads, kSsdPiece, kSsdWidth, kSsdXRow>(to.x, o.x.at(at.first, h), o.x.token, at.used);
  copy_rows<kSsdThreads, kSsdPiece, kSsdWidth, kSsdXRow>(to.dy, o.dy.at(at.first, h), o.dy.token, at.used);
  copy_rows<kSsdThreads, kSsdWidth, N, kSsdNRow<N>>(to.grad, o.grads + (piece * s.heads + h) * kSsdWidth * N,
                                                    N, kSsdWidth);
  copy_floats<kSsdThreads, SsdRecord::kFloats>(to.record,
                                               o.records + (piece * s.heads + h) * SsdRecord::kFloats);
}

/// Sums of w over one tile, run of s by a later run of t, held as a warp's sums.
template <int N>
__device__ __forceinline__ void add_up_tile(Shared<N>& sh, const float (&w)[2][4], float (&from_token)[2],
                                            int run, int to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float tile = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    from_token[0] += w[j][0] + w[j][1];
    from_token[1] += w[j][2] + w[j][3];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float column = w[j][e] + w[j][e + 2];
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2)
        column += __shfl_xor_sync(0xFFFFFFFFu, column, offset);
      tile += column;
      if (lane < 4) sh.to_token[run][to * kSsdRun + j * 8 + 2 * lane + e] = column;
    }
  }
  tile = quad_sum(tile);
  if (lane == 0) sh.of_runs[to][run] = tile;
}

/// table holds w[s, t] of a run with itself, zero unless s < t.
__device__ __forceinline__ void add_up_diagonal(float* table, float* same_run) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
  if (lane < kSsdRun) {
    float later = 0;
#pragma unroll
    for (int t = kSsdRun - 1; t >= 0; --t) {
      later += table[lane * kSsdTableRow + t];
      table[lane * kSsdTableRow + t] = later;
    }
  }
  __syncwarp();
  if (lane < kSsdRun) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kSsdRun; ++s)
      if (s < lane) sum += table[s * kSsdTableRow + lane];
    same_run[lane] = sum;
  }
}

/// One head, the tokens s of one warp's run against all t of no earlier run. grad, d(dt x), arrives with what
/// the state after the piece says; kt[d] is B C^T of the run with the run d after it.
template <int N>
__device__ void add_pairs(Shared<N>& sh, const typename Shared<N>::Head& head,
                          const float (&kt)[kSsdRuns][2][4], float (&dk)[kSsdRuns][2][4],
                          float (&grad)[kSsdWidth / 8][4], int warp, int run) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4, row = run * kSsdRun;
  const float* record = head.record;
  float* table = sh.table[warp];
  std::uint32_t x[kSsdWidth / 16][4];
#pragma unroll
  for (int k = 0; k < kSsdWidth / 16; ++k) load_a(x[k], head.x + row * kSsdXRow + k * 16, kSsdXRow);
  const float dt[2] = {record[SsdRecord::kDt + row + g], record[SsdRecord::kDt + row + g + 8]};
  const float out[2] = {record[SsdRecord::kRunOut + row + g], record[SsdRecord::kRunOut + row + g + 8]};
  float between = 1, from_token[2] = {0, 0};
#pragma unroll
  for (int d = 0; d < kSsdRuns; ++d) {
    const int to = run + d;
    if (to >= kSsdRuns) break;
    float z[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSsdWidth / 16; ++k)
      multiply_cols(z, x[k], head.dy + to * kSsdRun * kSsdXRow + k * 16, kSsdXRow);
    const float* in = record + SsdRecord::kRunIn + to * kSsdRun + 2 * q;
    const float2 decay_in[2] = {load_pair(in), load_pair(in + 8)};
    float m[2][4], w[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int s = g + e / 2 * 8, t = j * 8 + 2 * q + e % 2;
        const float decay = d == 0 ? table[s * kSsdTableRow + t]
                                   : between * out[e / 2] * (e % 2 == 0 ? decay_in[j].x : decay_in[j].y);
        const float dm = dt[e / 2] * z[j][e];
        m[j][e] = kt[d][j][e] * decay;
        dk[d][j][e] = fmaf(dm, decay, dk[d][j][e]);
        w[j][e] = dm * m[j][e];
        if (d == 0) table[s * kSsdTableRow + t] = s < t ? w[j][e] : 0.0f;
      }
    if (d > 0) {
      add_up_tile(sh, w, from_token, run, to);
      between *= record[SsdRecord::kRunAll + to];
    }
    const std::uint32_t a[4] = {pack_bf16(m[0][0], m[0][1]), pack_bf16(m[0][2], m[0][3]),
                                pack_bf16(m[1][0], m[1][1]), pack_bf16(m[1][2], m[1][3])};
    multiply_rows(grad, a, head.dy + to * kSsdRun * kSsdXRow, kSsdXRow);
  }
  add_up_diagonal(table, sh.same_run + row);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float sum = quad_sum(from_token[e]);
    if (q == 0) sh.from_token[row + g + e * 8] = sum;
  }
}

/// dx = dt d(dt x) + d dy, over grad; and the sums over the channels.
template <int N>
__device__ void finish_rows(const typename Shared<N>::Head& head, float (&grad)[kSsdWidth / 8][4], float d,
                            float* sums, int row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const int s = row + g + lower * 8;
    const float dt = head.record[SsdRecord::kDt + s];
    float x_dot = 0, x_dot_dy = 0;
#pragma unroll
    for (int j = 0; j < kSsdWidth / 8; ++j) {
      const int at = s * kSsdXRow + j * 8 + 2 * q;
      const std::uint32_t x = *reinterpret_cast<const std::uint32_t*>(head.x + at);
      const std::uint32_t dy = *reinterpret_cast<const std::uint32_t*>(head.dy + at);
      float &first = grad[j][2 * lower], &second = grad[j][2 * lower + 1];
      x_dot = fmaf(low_of(x), first, fmaf(high_of(x), second, x_dot));
      x_dot_dy = fmaf(low_of(x), low_of(dy), fmaf(high_of(x), high_of(dy), x_dot_dy));
      first = fmaf(dt, first, d * low_of(dy));
      second = fmaf(dt, second, d * high_of(dy));
    }
    x_dot = quad_sum(x_dot);
    x_dot_dy = quad_sum(x_dot_dy);
    if (q == 0) {
      sums[SsdSums::kXDot + s] = x_dot;
      sums[SsdSums::kXDotDy + s] = x_dot_dy;
    }
  }
}

/// What all pairs s < r <= t of the piece say of the log decay of token r. A sum of sums over rectangles,
/// never a difference: pairs of r's run, earlier runs to later tokens of r's run, earlier tokens of r's run
/// to later runs, earlier runs to later runs. Threads 0 to 127, whole warps.
template <int N>
__device__ float across_token(const Shared<N>& sh, int r) {
  const int run = r / kSsdRun, i = r % kSsdRun;
  float later = 0;
  for (int from = 0; from < run; ++from) later += sh.to_token[from][r];
  float earlier = __shfl_up_sync(0xFFFFFFFFu, sh.from_token[r], 1, kSsdRun);
  if (i == 0) earlier = 0;
#pragma unroll
  for (int offset = 1; offset < kSsdRun; offset *= 2) {
    const float after = __shfl_down_sync(0xFFFFFFFFu, later, offset, kSsdRun);
    const float before = __shfl_up_sync(0xFFFFFFFFu, earlier, offset, kSsdRun);
    if (i + offset < kSsdRun) later += after;
    if (i >= offset) earlier += before;
  }
  float runs = 0;
  for (int to = run + 1; to < kSsdRuns; ++to)
    for (int from = 0; from < run; ++from) runs += sh.of_runs[to][from];
  return sh.same_run[r] + later + earlier + runs;
}

/// dx, dK and the sums over pairs, for one piece and the heads of one group. Everything is held turned,
/// tokens s in rows: a warp keeps B C^T and dK of its run s against the runs from s on, 128 registers, and
/// the scores are the left operand of d(dt x) = M^T dy + decay_out B G^T. Bytes: x, dy, dx 2 T H P each,
/// gradients of the states 2 T/128 H P N, dk 2 T G 128, B and C: for 16384 tokens of 64 heads, 8 groups,
/// state 128: 640 MB, 0.16 ms at 4.1 TB/s. FLOPs 2 T (H P (128 + N) + G N 64) with the triangle alone = 37
/// GFLOP, 0.1 ms at 400 TFLOP/s.
template <int N>
__global__ void __launch_bounds__(kSsdThreads, 1) pairs(SsdShape s, Pairs o) {
  static_assert(sizeof(Shared<N>) <= kSsdSharedBytes);
  Shared<N>& sh = *reinterpret_cast<Shared<N>*>(shared_memory());
  const std::int64_t piece = blockIdx.x / s.groups, group = blockIdx.x % s.groups, h0 = group * s.per_group;
  const SsdPiece at(s, piece);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4, run = run_of_warp(), row = run * kSsdRun;
  // C is needed before the first head only; it lies where the second head's data will.
  static_assert(kSsdPiece * kSsdNRow<N> * sizeof(bf16) <= sizeof(typename Shared<N>::Head));
  bf16* c = reinterpret_cast<bf16*>(&sh.heads[1]);
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(sh.b, o.b.at(at.first, group), o.b.token, at.used);
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(c, o.c.at(at.first, group), o.c.token, at.used);
  commit_copies();
  fetch_head<N>(sh.heads[0], s, o, at, piece, h0);
  commit_copies();
  wait_copies<1>();
  __syncthreads();

  float kt[kSsdRuns][2][4] = {}, dk[kSsdRuns][2][4] = {};
#pragma unroll
  for (int k = 0; k < N; k += 16) {
    std::uint32_t a[4];
    load_a(a, sh.b + row * kSsdNRow<N> + k, kSsdNRow<N>);
#pragma unroll
    for (int d = 0; d < kSsdRuns; ++d) {
      if (run + d >= kSsdRuns) break;
      multiply_cols(kt[d], a, c + (run + d) * kSsdRun * kSsdNRow<N> + k, kSsdNRow<N>);
    }
  }

  for (std::int64_t i = 0; i < s.per_group; ++i) {
    wait_copies<0>();
    __syncthreads();
    if (i + 1 < s.per_group) fetch_head<N>(sh.heads[(i + 1) % 2], s, o, at, piece, h0 + i + 1);
    commit_copies();
    typename Shared<N>::Head& head = sh.heads[i % 2];
    float* sums = o.sums + (piece * s.heads + h0 + i) * SsdSums::kFloats;
    fill_decay_table(sh.table[warp], head.record + SsdRecord::kLog + row);
    float grad[kSsdWidth / 8][4] = {};
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      std::uint32_t a[4];
      load_a(a, sh.b + row * kSsdNRow<N> + k, kSsdNRow<N>);
      multiply_cols(grad, a, head.grad + k, kSsdNRow<N>);
    }
    const float out[2] = {head.record[SsdRecord::kOut + row + g], head.record[SsdRecord::kOut + row + g + 8]};
#pragma unroll
    for (int j = 0; j < kSsdWidth / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) grad[j][e] *= out[e / 2];
    add_pairs<N>(sh, head, kt, dk, grad, warp, run);
    finish_rows<N>(head, grad, o.d_H(h0 + i), sums, row);
    // A warp's rows of x are its own, and serve it as the way out.
    store_rows<kSsdWidth / 8, kSsdXRow>(grad, head.x + row * kSsdXRow, o.dx.at(at.first + row, h0 + i),
                                        o.dx.token, at.used - row);
    __syncthreads();
    if (threadIdx.x < kSsdPiece)
      sums[SsdSums::kPairs + threadIdx.x] = across_token<N>(sh, static_cast<int>(threadIdx.x));
  }

  bf16* to = o.dk + (piece * s.groups + group) * kSsdPiece * kSsdPiece;
#pragma unroll
  for (int d = 0; d < kSsdRuns; ++d) {
    if (run + d >= kSsdRuns) break;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower)
        *reinterpret_cast<std::uint32_t*>(to + (row + g + lower * 8) * kSsdPiece + (run + d) * kSsdRun +
                                          j * 8 + 2 * q) =
            pack_bf16(dk[d][j][2 * lower], dk[d][j][2 * lower + 1]);
  }
}

}  // namespace

void run(Stream& stream, const SsdBackward& a) {
  if (a.x_THP.numel() == 0) return;
  if (!ssd_fast(a)) return ssd_general(stream, a);
  Arena& scratch = stream.scratch();
  const ArenaScope scope(scratch);
  const SsdShape s(a);
  const std::int64_t n = a.b_TGN.size(2), count = s.all_pieces() * s.heads;
  const SsdIn x(a.x_THP), b(a.b_TGN), c(a.c_TGN), dy(a.dy_THP);
  const SsdStepRule rule(a);
  float* records = scratch.take<float>(count, SsdRecord::kFloats).data();
  float* sums = scratch.take<float>(count, SsdSums::kFloats).data();
  float* through = scratch.take<float>(count, kSsdThroughParts).data();
  float* parts = scratch.take<float>(count, 3).data();
  bf16* states = scratch.take<bf16>(count, kSsdWidth, n).data();
  bf16* grads = scratch.take<bf16>(count, kSsdWidth, n).data();
  bf16* dk = scratch.take<bf16>(s.all_pieces() * s.groups, kSsdPiece, kSsdPiece).data();

  // The states are made again, in BF16 and before every piece: reading those that forward kept, in FP32 and
  // only before every chunk, and rounding them would move more bytes than x and B are.
  ssd_steps(stream, s, rule, records);
  ssd_carry(stream, s, n, false, {x, b, records, states, nullptr, nullptr, nullptr});
  ssd_carry(stream, s, n, true, {dy, c, records, grads, nullptr, states, through});
  const Pairs o{x, b, c, dy, DeviceFloats<const float>(a.d_H), records, grads, SsdOut(a.dx_THP), dk, sums};
  const dim3 grid(static_cast<unsigned>(s.all_pieces() * s.groups));
  if (n == 128)
    launch(stream, "ssd_backward", pairs<128>, grid, dim3(kSsdThreads), sizeof(Shared<128>), s, o);
  else
    launch(stream, "ssd_backward", pairs<64>, grid, dim3(kSsdThreads), sizeof(Shared<64>), s, o);
  const SsdShared db{x, SsdRecord::kOutDt, grads, b, c, SsdOut(a.db_TGN), SsdSums::kFromOut};
  const SsdShared dc{dy, SsdRecord::kIn, states, c, b, SsdOut(a.dc_TGN), SsdSums::kFromIn};
  ssd_shared_gradients(stream, s, n, records, dk, sums, db, dc);
  ssd_finish(stream, s, rule, records, sums, through, n / 64 * 4, DeviceOut(a.ddt_TH), parts);
  ssd_add_parameters(stream, a, s.all_pieces(), parts);
}

}  // namespace nibble::cuda
