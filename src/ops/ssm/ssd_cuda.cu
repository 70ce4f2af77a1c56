// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cuda.cuh"

namespace nibble::cuda {
namespace {

/// What a block holds in shared memory.
template <int N>
struct Shared {
  bf16 c[kSsdPiece * kSsdNRow<N>];
  bf16 b[kSsdPiece * kSsdNRow<N>];  ///< once C B^T is known, each warp's rows are its way out
  struct Head {
    bf16 x[kSsdPiece * kSsdXRow], state[kSsdWidth * kSsdNRow<N>];
    float record[SsdRecord::kFloats];
  } heads[2];
  float table[kSsdRuns][kSsdRun * kSsdTableRow];
};

struct Outputs {
  SsdIn x, b, c;
  DeviceFloats<const float> d_H;
  const float* records;
  const bf16* states;
  SsdOut y;
};

template <int N>
__device__ void fetch_head(typename Shared<N>::Head& to, const SsdShape& s, const Outputs& o,
                           const SsdPiece& at, std::int64_t piece, std::int64_t h) {
  copy_rows<kSsdThreads, kSsdPiece, kSsdWidth, kSsdXRow>(to.x, o.x.at(at.first, h), o.x.token, at.used);
  copy_rows<kSsdThreads, kSsdWidth, N, kSsdNRow<N>>(
      to.state, o.states + (piece * s.heads + h) * kSsdWidth * N, N, kSsdWidth);
  copy_floats<kSsdThreads, SsdRecord::kFloats>(to.record,
                                               o.records + (piece * s.heads + h) * SsdRecord::kFloats);
}

/// Adds what the tokens of this piece say to the outputs of run `run`; cb[d] is C B^T of the run with the run
/// d before it.
template <int N>
__device__ void add_inside(float (&y)[kSsdWidth / 8][4], const float (&cb)[kSsdRuns][2][4],
                           const typename Shared<N>::Head& head, const float* table, int run) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const float *dt = head.record + SsdRecord::kDt, *run_out = head.record + SsdRecord::kRunOut;
  const float in[2] = {head.record[SsdRecord::kRunIn + run * kSsdRun + g],
                       head.record[SsdRecord::kRunIn + run * kSsdRun + g + 8]};
  float between = 1;
#pragma unroll
  for (int d = 0; d < kSsdRuns; ++d) {
    const int from = run - d;
    if (from < 0) break;
    const float *dts = dt + from * kSsdRun + 2 * q, *outs = run_out + from * kSsdRun + 2 * q;
    const float2 step[2] = {load_pair(dts), load_pair(dts + 8)},
                 decay_out[2] = {load_pair(outs), load_pair(outs + 8)};
    float m[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = g + e / 2 * 8, s = j * 8 + 2 * q + e % 2;
        const float decay = d == 0 ? table[s * kSsdTableRow + t]
                                   : between * in[e / 2] * (e % 2 == 0 ? decay_out[j].x : decay_out[j].y);
        m[j][e] = cb[d][j][e] * decay * (e % 2 == 0 ? step[j].x : step[j].y);
      }
    if (d > 0) between *= head.record[SsdRecord::kRunAll + from];
    const std::uint32_t a[4] = {pack_bf16(m[0][0], m[0][1]), pack_bf16(m[0][2], m[0][3]),
                                pack_bf16(m[1][0], m[1][1]), pack_bf16(m[1][2], m[1][3])};
    multiply_rows(y, a, head.x + from * kSsdRun * kSsdXRow, kSsdXRow);
  }
}

/// y = decay_in C S + M x + d x for one piece and the heads of one group, which share C B^T: each warp keeps
/// it for its run of tokens in registers, and its rows, decayed, are the left operand of M x. Bytes: x, y 2 T
/// H P each, states 2 T/128 H P N, B and C 2 T G N each, records: for 16384 tokens of 64 heads, 8 groups,
/// state 128: 502 MB, 0.12 ms at 4.1 TB/s. FLOPs 2 T (H P (N + 64) + G N 64) = 28 GFLOP with the triangle
/// alone: 0.07 ms at 400 TFLOP/s.
template <int N>
__global__ void __launch_bounds__(kSsdThreads, 1) outputs(SsdShape s, Outputs o) {
  static_assert(sizeof(Shared<N>) <= kSsdSharedBytes);
  Shared<N>& sh = *reinterpret_cast<Shared<N>*>(shared_memory());
  const std::int64_t piece = blockIdx.x / s.groups, group = blockIdx.x % s.groups, h0 = group * s.per_group;
  const SsdPiece at(s, piece);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4, run = run_of_warp(), row = run * kSsdRun;
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(sh.c, o.c.at(at.first, group), o.c.token, at.used);
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(sh.b, o.b.at(at.first, group), o.b.token, at.used);
  commit_copies();
  fetch_head<N>(sh.heads[0], s, o, at, piece, h0);
  commit_copies();
  wait_copies<1>();
  __syncthreads();

  float cb[kSsdRuns][2][4] = {};
#pragma unroll
  for (int k = 0; k < N; k += 16) {
    std::uint32_t a[4];
    load_a(a, sh.c + row * kSsdNRow<N> + k, kSsdNRow<N>);
#pragma unroll
    for (int d = 0; d < kSsdRuns; ++d) {
      if (d > run) break;
      multiply_cols(cb[d], a, sh.b + (run - d) * kSsdRun * kSsdNRow<N> + k, kSsdNRow<N>);
    }
  }

  for (std::int64_t i = 0; i < s.per_group; ++i) {
    wait_copies<0>();
    __syncthreads();
    if (i + 1 < s.per_group) fetch_head<N>(sh.heads[(i + 1) % 2], s, o, at, piece, h0 + i + 1);
    commit_copies();
    const typename Shared<N>::Head& head = sh.heads[i % 2];
    fill_decay_table(sh.table[warp], head.record + SsdRecord::kLog + row);
    float y[kSsdWidth / 8][4] = {};
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      std::uint32_t a[4];
      load_a(a, sh.c + row * kSsdNRow<N> + k, kSsdNRow<N>);
      multiply_cols(y, a, head.state + k, kSsdNRow<N>);
    }
    const float in[2] = {head.record[SsdRecord::kIn + row + g], head.record[SsdRecord::kIn + row + g + 8]};
#pragma unroll
    for (int j = 0; j < kSsdWidth / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[j][e] *= in[e / 2];
    add_inside<N>(y, cb, head, sh.table[warp], run);
    const float d = o.d_H(h0 + i);
#pragma unroll
    for (int j = 0; j < kSsdWidth / 8; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const std::uint32_t x = *reinterpret_cast<const std::uint32_t*>(
            head.x + (row + g + lower * 8) * kSsdXRow + j * 8 + 2 * q);
        y[j][2 * lower] = fmaf(d, low_of(x), y[j][2 * lower]);
        y[j][2 * lower + 1] = fmaf(d, high_of(x), y[j][2 * lower + 1]);
      }
    store_rows<kSsdWidth / 8, kSsdXRow>(y, sh.b + row * kSsdNRow<N>, o.y.at(at.first + row, h0 + i),
                                        o.y.token, at.used - row);
  }
}

/// Whether rows can be copied sixteen bytes at a time.
template <bool kConst>
bool rows_fit(const BasicRealView<kConst>& v) {
  return v.dtype() == DType::BF16 && packs_fit<8>(static_cast<const bf16*>(v.data()), v.stride(0)) &&
         packs_fit<8>(static_cast<const bf16*>(v.data()), v.stride(1));
}

template <class Args>
bool shape_fits(const Args& a) {
  const std::int64_t n = a.b_TGN.size(2);
  return a.x_THP.size(2) == kSsdWidth && (n == 64 || n == 128) &&
         (a.chunk % kSsdPiece == 0 || a.seq_len <= a.chunk) && rows_fit(a.x_THP) && rows_fit(a.b_TGN) &&
         rows_fit(a.c_TGN) && packs_fit<2>(a.states.data(), n);
}

bool device_fits() {
  int device = 0, bytes = 0;
  cuda_check(cudaGetDevice(&device), "ssd");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "ssd");
  return static_cast<std::size_t>(bytes) >= kSsdSharedBytes;
}

}  // namespace

bool ssd_fast(const Ssd& a) { return shape_fits(a) && rows_fit(a.y_THP) && device_fits(); }
bool ssd_fast(const SsdBackward& a) {
  return shape_fits(a) && device_fits() && rows_fit(a.dy_THP) && rows_fit(a.dx_THP) && rows_fit(a.db_TGN) &&
         rows_fit(a.dc_TGN);
}

void run(Stream& stream, const Ssd& a) {
  if (a.x_THP.numel() == 0) return;
  if (!ssd_fast(a)) return ssd_general(stream, a);
  const ArenaScope scope(stream.scratch());
  const SsdShape s(a);
  const std::int64_t n = a.b_TGN.size(2), count = s.all_pieces() * s.heads;
  float* records = stream.scratch().take<float>(count, SsdRecord::kFloats).data();
  bf16* states = stream.scratch().take<bf16>(count, kSsdWidth, n).data();
  ssd_steps(stream, s, SsdStepRule(a), records);
  ssd_carry(stream, s, n, false,
            {SsdIn(a.x_THP), SsdIn(a.b_TGN), records, states, a.states.data(), nullptr, nullptr});
  const Outputs o{SsdIn(a.x_THP), SsdIn(a.b_TGN), SsdIn(a.c_TGN), DeviceFloats<const float>(a.d_H),
                  records,        states,         SsdOut(a.y_THP)};
  const dim3 grid(static_cast<unsigned>(s.all_pieces() * s.groups));
  if (n == 128)
    launch(stream, "ssd", outputs<128>, grid, dim3(kSsdThreads), sizeof(Shared<128>), s, o);
  else
    launch(stream, "ssd", outputs<64>, grid, dim3(kSsdThreads), sizeof(Shared<64>), s, o);
}

}  // namespace nibble::cuda
