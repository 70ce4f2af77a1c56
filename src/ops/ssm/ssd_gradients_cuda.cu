// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cuda.cuh"

namespace nibble::cuda {
namespace {

/// While the heads are added `work` holds two of them; then dK and the other of B and C.
template <int N>
struct Shared {
  struct Head {
    bf16 rows[kSsdPiece * kSsdXRow], state[kSsdWidth * kSsdNRow<N>];
    float scale[kSsdPiece];
  };
  struct Pairs {
    bf16 dk[kSsdPiece * kSsdNRow<kSsdPiece>], other[kSsdPiece * kSsdNRow<N>];
  };
  bf16 own[kSsdPiece * kSsdNRow<N>];
  union {
    Head heads[2];
    Pairs pairs;
  };
};

template <int N>
__device__ void fetch_head(typename Shared<N>::Head& to, const SsdShape& s, const SsdShared& o,
                           const float* records, const SsdPiece& at, std::int64_t piece, std::int64_t h) {
  copy_rows<kSsdThreads, kSsdPiece, kSsdWidth, kSsdXRow>(to.rows, o.rows.at(at.first, h), o.rows.token,
                                                         at.used);
  copy_rows<kSsdThreads, kSsdWidth, N, kSsdNRow<N>>(
      to.state, o.states + (piece * s.heads + h) * kSsdWidth * N, N, kSsdWidth);
  copy_floats<kSsdThreads, kSsdPiece>(to.scale,
                                      records + (piece * s.heads + h) * SsdRecord::kFloats + o.scale);
}

/// total += scale (rows state) for the sixteen tokens of a warp; dots = scale (rows state) . own, by token.
template <int N>
__device__ void add_head(float (&total)[N / 8][4], const typename Shared<N>::Head& head, const bf16* own,
                         int row, float* dots) {
  constexpr int kPart = 4;  // products of 8 columns at a time: all of them would not fit the registers
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const float scale[2] = {head.scale[row + g], head.scale[row + g + 8]};
  std::uint32_t a[kSsdWidth / 16][4];
#pragma unroll
  for (int k = 0; k < kSsdWidth / 16; ++k) load_a(a[k], head.rows + row * kSsdXRow + k * 16, kSsdXRow);
  float dot[2] = {0, 0};
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += kPart) {
    float part[kPart][4] = {};
#pragma unroll
    for (int k = 0; k < kSsdWidth / 16; ++k)
      multiply_rows(part, a[k], head.state + k * 16 * kSsdNRow<N> + j0 * 8, kSsdNRow<N>);
#pragma unroll
    for (int j = 0; j < kPart; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float first = scale[lower] * part[j][2 * lower], second = scale[lower] * part[j][2 * lower + 1];
        const std::uint32_t v = *reinterpret_cast<const std::uint32_t*>(
            own + (row + g + lower * 8) * kSsdNRow<N> + (j0 + j) * 8 + 2 * q);
        total[j0 + j][2 * lower] += first;
        total[j0 + j][2 * lower + 1] += second;
        dot[lower] = fmaf(first, low_of(v), fmaf(second, high_of(v), dot[lower]));
      }
  }
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const float sum = quad_sum(dot[lower]);
    if (q == 0) dots[row + g + lower * 8] = sum;
  }
}

/// dC (kTurned) = sum over heads of decay_in dy S + dK^T^T B, or dB = sum over heads of decay_out dt x G +
/// dK^T C, with dk stored turned, [s, t]; and of each head the part that the log decays need. One piece and
/// group a block. Bytes, each of the two: rows 2 T H P, states 2 T/128 H P N, dk 2 T G 128, B, C and the
/// result: for 16384 tokens of 64 heads, 8 groups, state 128: 402 MB, 0.10 ms at 4.1 TB/s; FLOPs 2 T (H P N +
/// G N 64) = 20 GFLOP, 0.05 ms at 400 TFLOP/s.
template <int N, bool kTurned>
__global__ void __launch_bounds__(kSsdThreads, 2)
    shared_gradient(SsdShape s, SsdShared o, const float* records, const bf16* dk, float* sums) {
  static_assert(sizeof(Shared<N>) <= kSsdSharedBytes);
  Shared<N>& sh = *reinterpret_cast<Shared<N>*>(shared_memory());
  const std::int64_t piece = blockIdx.x / s.groups, group = blockIdx.x % s.groups, h0 = group * s.per_group;
  const SsdPiece at(s, piece);
  const int run = run_of_warp(), row = run * kSsdRun;
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(sh.own, o.own.at(at.first, group), o.own.token, at.used);
  fetch_head<N>(sh.heads[0], s, o, records, at, piece, h0);
  commit_copies();
  float total[N / 8][4] = {};
  for (std::int64_t i = 0; i < s.per_group; ++i) {
    wait_copies<0>();
    __syncthreads();
    if (i + 1 < s.per_group) fetch_head<N>(sh.heads[(i + 1) % 2], s, o, records, at, piece, h0 + i + 1);
    commit_copies();
    add_head<N>(total, sh.heads[i % 2], sh.own, row,
                sums + (piece * s.heads + h0 + i) * SsdSums::kFloats + o.dots);
  }
  __syncthreads();
  const bf16* from = dk + (piece * s.groups + group) * kSsdPiece * kSsdPiece;
  for (int i = static_cast<int>(threadIdx.x); i < kSsdPiece * kSsdPiece / 8; i += kSsdThreads) {
    const int token = i / (kSsdPiece / 8), t = i % (kSsdPiece / 8) * 8;
    copy_async(sh.pairs.dk + token * kSsdNRow<kSsdPiece> + t, from + token * kSsdPiece + t,
               t / kSsdRun >= token / kSsdRun);
  }
  copy_rows<kSsdThreads, kSsdPiece, N, kSsdNRow<N>>(sh.pairs.other, o.other.at(at.first, group),
                                                    o.other.token, at.used);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  // dC of a run takes tokens s of no later run, dB of a run tokens t of no earlier one.
  for (int k = kTurned ? 0 : run; k <= (kTurned ? run : kSsdRuns - 1); ++k) {
    std::uint32_t a[4];
    if constexpr (kTurned)
      load_a_turned(a, sh.pairs.dk + k * kSsdRun * kSsdNRow<kSsdPiece> + row, kSsdNRow<kSsdPiece>);
    else
      load_a(a, sh.pairs.dk + row * kSsdNRow<kSsdPiece> + k * kSsdRun, kSsdNRow<kSsdPiece>);
    multiply_rows(total, a, sh.pairs.other + k * kSsdRun * kSsdNRow<N>, kSsdNRow<N>);
  }
  // The rows of `own` that a warp has read are its own, and serve it as the way out.
  store_rows<N / 8, kSsdNRow<N>>(total, sh.own + row * kSsdNRow<N>, o.out.at(at.first + row, group),
                                 o.out.token, at.used - row);
}

template <int N>
void shared_gradients_of(Stream& stream, const SsdShape& s, const float* records, const bf16* dk, float* sums,
                         const SsdShared& db, const SsdShared& dc) {
  const dim3 grid(static_cast<unsigned>(s.all_pieces() * s.groups));
  launch(stream, "ssd_backward", shared_gradient<N, false>, grid, dim3(kSsdThreads), sizeof(Shared<N>), s, db,
         records, dk, sums);
  launch(stream, "ssd_backward", shared_gradient<N, true>, grid, dim3(kSsdThreads), sizeof(Shared<N>), s, dc,
         records, dk, sums);
}

/// The sum of x over this thread and all later ones (kLater), or over all earlier ones, of a block of
/// kSsdPiece.
template <bool kLater>
__device__ float sum_beside(float x, float* warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  float sum = x;
  if (!kLater) {
    sum = __shfl_up_sync(0xFFFFFFFFu, x, 1);
    if (lane == 0) sum = 0;
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float other =
        kLater ? __shfl_down_sync(0xFFFFFFFFu, sum, offset) : __shfl_up_sync(0xFFFFFFFFu, sum, offset);
    if (kLater ? lane + offset < kWarp : lane >= offset) sum += other;
  }
  if (lane == (kLater ? 0 : kWarp - 1)) warps[warp] = kLater ? sum : sum + x;
  __syncthreads();
  float beside = 0;
  for (int w = 0; w < kSsdPiece / kWarp; ++w)
    if (kLater ? w > warp : w < warp) beside += warps[w];
  __syncthreads();
  return sum + beside;
}

/// The log decay of token r acts on all that crosses r: pairs of the piece, outputs at t >= r from the state
/// before it, tokens s < r in the state after it, and what passes through the whole piece. All are sums.
/// Reads 28 bytes a token and head, writes 2.
__global__ void __launch_bounds__(kSsdPiece)
    finish(SsdShape s, SsdStepRule rule, const float* records, const float* sums, const float* through,
           std::int64_t through_parts, DeviceOut ddt_TH, float* parts) {
  __shared__ float warps[kSsdPiece / kWarp];
  const std::int64_t piece = blockIdx.x / s.heads, h = blockIdx.x % s.heads;
  const SsdPiece at(s, piece);
  const int r = static_cast<int>(threadIdx.x);
  const float* record = records + static_cast<std::int64_t>(blockIdx.x) * SsdRecord::kFloats;
  const float* sum = sums + static_cast<std::int64_t>(blockIdx.x) * SsdSums::kFloats;
  const float inward = sum_beside<true>(sum[SsdSums::kFromIn + r], warps);
  const float outward = sum_beside<false>(sum[SsdSums::kFromOut + r], warps);
  float crossing = 0;
  for (std::int64_t i = 0; i < through_parts; ++i)
    crossing += through[static_cast<std::int64_t>(blockIdx.x) * kSsdThroughParts + i];
  const float dlog = sum[SsdSums::kPairs + r] + inward + outward + record[SsdRecord::kAll] * crossing;
  const float slope_a = ssd_slope_a(rule.a_log_H(h));
  const float ddt = fmaf(slope_a, dlog, sum[SsdSums::kXDot + r]) * record[SsdRecord::kSlope + r];
  if (r < at.used) ddt_TH.set(ddt, at.first + r, h);
  const float da = block_sum<kSsdPiece>(record[SsdRecord::kDt + r] * dlog);
  const float dd = block_sum<kSsdPiece>(sum[SsdSums::kXDotDy + r]);
  const float dbias = block_sum<kSsdPiece>(ddt);
  if (r == 0) {
    float* to = parts + static_cast<std::int64_t>(blockIdx.x) * 3;
    to[0] = da;
    to[1] = dd;
    to[2] = dbias;
  }
}

constexpr int kParameterThreads = 128;

__global__ void __launch_bounds__(kParameterThreads)
    add_parameters(std::int64_t count, std::int64_t heads, const float* parts,
                   DeviceFloats<const float> a_log_H, DeviceFloats<float> da_log_H, DeviceFloats<float> dd_H,
                   DeviceFloats<float> ddt_bias_H) {
  const std::int64_t h = blockIdx.x;
  float sums[3] = {0, 0, 0};
  for (std::int64_t i = threadIdx.x; i < count; i += kParameterThreads)
#pragma unroll
    for (int j = 0; j < 3; ++j) sums[j] += parts[(i * heads + h) * 3 + j];
#pragma unroll
  for (int j = 0; j < 3; ++j) sums[j] = block_sum<kParameterThreads>(sums[j]);
  if (threadIdx.x == 0) {
    da_log_H(h) += sums[0] * ssd_slope_a(a_log_H(h));  // d(a)/d(a_log) = a
    dd_H(h) += sums[1];
    ddt_bias_H(h) += sums[2];
  }
}

}  // namespace

void ssd_shared_gradients(Stream& stream, const SsdShape& s, std::int64_t state_size, const float* records,
                          const bf16* dk, float* sums, const SsdShared& db, const SsdShared& dc) {
  if (state_size == 128)
    shared_gradients_of<128>(stream, s, records, dk, sums, db, dc);
  else
    shared_gradients_of<64>(stream, s, records, dk, sums, db, dc);
}

void ssd_finish(Stream& stream, const SsdShape& s, const SsdStepRule& rule, const float* records,
                const float* sums, const float* through, std::int64_t through_parts, DeviceOut ddt_TH,
                float* parts) {
  launch(stream, "ssd_backward", finish, dim3(static_cast<unsigned>(s.all_pieces() * s.heads)),
         dim3(kSsdPiece), 0, s, rule, records, sums, through, through_parts, ddt_TH, parts);
}

void ssd_add_parameters(Stream& stream, const SsdBackward& a, std::int64_t count, const float* parts) {
  launch(stream, "ssd_backward", add_parameters, dim3(static_cast<unsigned>(a.x_THP.size(1))),
         dim3(kParameterThreads), 0, count, a.x_THP.size(1), parts, DeviceFloats<const float>(a.a_log_H),
         DeviceFloats<float>(a.da_log_H), DeviceFloats<float>(a.dd_H), DeviceFloats<float>(a.ddt_bias_H));
}

}  // namespace nibble::cuda
