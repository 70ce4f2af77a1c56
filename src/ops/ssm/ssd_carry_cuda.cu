// SPDX-License-Identifier: Apache-2.0
#include "ops/ssm/ssd_cuda.cuh"

namespace nibble::cuda {
namespace {

/// One block a piece and head, one thread a token. Tokens beyond the sequence have dt = 0 and decay 1, so
/// they change nothing. Reads 2 bytes and writes 33 a token and head.
__global__ void __launch_bounds__(kSsdPiece) steps(SsdShape s, SsdStepRule rule, float* records) {
  __shared__ float log[kSsdPiece], run_all[kSsdRuns];
  const std::int64_t piece = blockIdx.x / s.heads, h = blockIdx.x % s.heads;
  const SsdPiece at(s, piece);
  const int t = static_cast<int>(threadIdx.x), run = t / kSsdRun, base = run * kSsdRun;
  const SsdStep step = t < at.used ? ssd_step(rule, at.first + t, h) : SsdStep{0, 0};
  log[t] = step.dt * ssd_slope_a(rule.a_log_H(h));
  __syncthreads();
  float in = 0, out = 0;
#pragma unroll
  for (int r = 0; r < kSsdRun; ++r) {
    const float x = log[base + r];
    if (base + r <= t)
      in += x;
    else
      out += x;
  }
  in = expf(in);
  out = expf(out);
  if (t == base + kSsdRun - 1) run_all[run] = in;
  __syncthreads();
  float before = 1, after = 1, all = 1;
#pragma unroll
  for (int r = 0; r < kSsdRuns; ++r) {
    if (r < run) before *= run_all[r];
    if (r > run) after *= run_all[r];
    all *= run_all[r];
  }
  float* record = records + static_cast<std::int64_t>(blockIdx.x) * SsdRecord::kFloats;
  record[SsdRecord::kDt + t] = step.dt;
  record[SsdRecord::kSlope + t] = step.slope;
  record[SsdRecord::kLog + t] = log[t];
  record[SsdRecord::kRunIn + t] = in;
  record[SsdRecord::kRunOut + t] = out;
  record[SsdRecord::kIn + t] = before * in;
  record[SsdRecord::kOut + t] = out * after;
  record[SsdRecord::kOutDt + t] = out * after * step.dt;
  if (t < kSsdRun) record[SsdRecord::kRunAll + t] = t < kSsdRuns ? run_all[t] : t == kSsdRuns ? all : 0.0f;
}

constexpr int kThreads = 128;
constexpr int kHalf = 64;  ///< columns of the state that a block owns
constexpr int kStep = 64;  ///< tokens of a stage of the pipeline
constexpr int kStages = 3;

struct Stage {
  bf16 rows[kStep * kSsdXRow], cols[kStep * kSsdXRow];
  float scale[kStep];
  float all[4];  ///< the first: the piece's whole decay
};

/// The states (or their gradients) of one head in one sequence, half of the columns.
template <int N, bool kBackward>
struct Walk {
  SsdShape s;
  SsdCarry c;
  std::int64_t half, h, sequence;

  __device__ Walk(const SsdShape& shape, const SsdCarry& carry) : s(shape), c(carry) {
    constexpr int kHalves = N / kHalf;
    half = blockIdx.x % kHalves;
    h = blockIdx.x / kHalves % s.heads;
    sequence = blockIdx.x / (kHalves * s.heads);
  }
  /// The i-th piece that is visited, among the pieces of all sequences.
  __device__ std::int64_t piece(std::int64_t i) const {
    return sequence * s.pieces + (kBackward ? s.pieces - 1 - i : i);
  }
  __device__ const float* record(std::int64_t i) const {
    return c.records + (piece(i) * s.heads + h) * SsdRecord::kFloats;
  }
  /// Starts the copies of step `step`: half a piece.
  __device__ void fetch(Stage& stage, std::int64_t step) const {
    const SsdPiece at(s, piece(step / 2));
    const int from = static_cast<int>(step % 2) * kStep, used = max(at.used - from, 0);
    const std::int64_t first = at.first + (used > 0 ? from : 0);
    const std::int64_t g = h / s.per_group;
    copy_rows<kThreads, kStep, kSsdWidth, kSsdXRow>(stage.rows, c.rows.at(first, h), c.rows.token, used);
    copy_rows<kThreads, kStep, kHalf, kSsdXRow>(stage.cols, c.cols.at(first, g) + half * kHalf, c.cols.token,
                                                used);
    const float* from_record = record(step / 2);
    copy_floats<kThreads, kStep>(stage.scale,
                                 from_record + (kBackward ? SsdRecord::kIn : SsdRecord::kOutDt) + from);
    copy_floats<kThreads, 4>(stage.all, from_record + SsdRecord::kAll);
  }
  /// sums += (scale rows)^T cols: this warp's sixteen channels by kHalf.
  __device__ void add(const Stage& stage, float (&sums)[kHalf / 8][4]) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int k = 0; k < kStep; k += 16) {
      std::uint32_t a[4];
      load_a_turned(a, stage.rows + k * kSsdXRow + warp * 16, kSsdXRow);
      const float2 low = load_pair(stage.scale + k + 2 * q);
      const float2 high = load_pair(stage.scale + k + 2 * q + 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 by = i < 2 ? low : high;
        a[i] = pack_bf16(low_of(a[i]) * by.x, high_of(a[i]) * by.y);
      }
      multiply_rows(sums, a, stage.cols + k * kSsdXRow, kSsdXRow);
    }
  }
  /// Writes the state at the i-th visited piece; against the order also its part of gradient.state.
  __device__ void write(std::int64_t i, const float (&sums)[kHalf / 8][4]) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    const int p = warp * 16 + lane / 4, n = static_cast<int>(half) * kHalf + lane % 4 * 2;
    const std::int64_t at = piece(i) * s.heads + h, corner = at * kSsdWidth * N + p * N + n;
    [[maybe_unused]] float dot = 0;
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const std::int64_t to = corner + lower * 8 * N + j * 8;
        const float x = sums[j][2 * lower], y = sums[j][2 * lower + 1];
        *reinterpret_cast<std::uint32_t*>(c.out + to) = pack_bf16(x, y);
        if constexpr (kBackward) {
          const std::uint32_t state = *reinterpret_cast<const std::uint32_t*>(c.states + to);
          dot = fmaf(x, low_of(state), fmaf(y, high_of(state), dot));
        }
      }
    if constexpr (kBackward) {
      dot = warp_sum(dot);
      if (lane == 0) c.through[at * kSsdThroughParts + half * (kThreads / kWarp) + warp] = dot;
    } else {
      keep(i, p, n, sums);
    }
  }
  __device__ void keep(std::int64_t i, int p, int n, const float (&sums)[kHalf / 8][4]) const {
    if (c.kept == nullptr || i % s.keep_each != 0) return;
    const std::int64_t chunks = (s.pieces + s.keep_each - 1) / s.keep_each;
    float* to = c.kept + ((sequence * chunks + i / s.keep_each) * s.heads + h) * kSsdWidth * N + p * N + n;
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[j][0], sums[j][1]);
      *reinterpret_cast<float2*>(to + 8 * N + j * 8) = make_float2(sums[j][2], sums[j][3]);
    }
  }
};

/// A block walks over all pieces of a sequence with half a head's state in registers, so states are written
/// once and never read back. Bytes in order: rows 2 T H P (twice, the second half of the state from L2), cols
/// 2 T G N, out 2 T/128 H P N, kept 4 T/chunk H P N: for 16384 tokens of 64 heads, state 128, 570 MB, 0.14 ms
/// at 4.1 TB/s; against it, with the states read: 436 MB, 0.11 ms. FLOPs 2 T H P N = 17 GFLOP.
template <int N, bool kBackward>
__global__ void __launch_bounds__(kThreads, 4) carry(SsdShape s, SsdCarry c) {
  const Walk<N, kBackward> walk(s, c);
  Stage* stages = reinterpret_cast<Stage*>(shared_memory());
  float sums[kHalf / 8][4] = {};
  const std::int64_t steps = 2 * (s.pieces - 1);  // what the last piece would add is nobody's to read
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < steps) walk.fetch(stages[i], i);
    commit_copies();
  }
  walk.write(0, sums);
  for (std::int64_t step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    const std::int64_t next = step + kStages - 1;
    if (next < steps) walk.fetch(stages[next % kStages], next);
    commit_copies();
    if (step % 2 == 0) {
      const float all = stages[step % kStages].all[0];
#pragma unroll
      for (int j = 0; j < kHalf / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[j][e] *= all;
    }
    walk.add(stages[step % kStages], sums);
    if (step % 2 == 1) walk.write(step / 2 + 1, sums);
  }
}

template <int N>
void carry_of(Stream& stream, const SsdShape& s, bool backward, const SsdCarry& c) {
  static_assert(N / kHalf * (kThreads / kWarp) <= kSsdThroughParts);
  const dim3 grid(static_cast<unsigned>(N / kHalf * s.heads * s.sequences));
  const std::size_t bytes = kStages * sizeof(Stage);
  if (backward)
    launch(stream, "ssd_backward", carry<N, true>, grid, dim3(kThreads), bytes, s, c);
  else
    launch(stream, "ssd", carry<N, false>, grid, dim3(kThreads), bytes, s, c);
}

}  // namespace

void ssd_steps(Stream& stream, const SsdShape& s, const SsdStepRule& rule, float* records) {
  launch(stream, "ssd", steps, dim3(static_cast<unsigned>(s.all_pieces() * s.heads)), dim3(kSsdPiece), 0, s,
         rule, records);
}

void ssd_carry(Stream& stream, const SsdShape& s, std::int64_t state_size, bool backward, const SsdCarry& c) {
  if (state_size == 128)
    carry_of<128>(stream, s, backward, c);
  else
    carry_of<64>(stream, s, backward, c);
}

}  // namespace nibble::cuda
