// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <type_traits>

#include "ops/any_rows.cuh"
#include "ops/elementwise/elementwise.h"
#include "ops/second_stage.h"

/// Maps of one to three matrices to one or two. Floors at T = 16384, D or F = 2048 and 4.2 TB/s, BF16:
/// add 6 bytes an element, 201 MB, 48 us; cast of FP32 to BF16 the same; squared_relu 4 bytes, 134 MB, 32 us;
/// its backward 6 bytes, 48 us; swiglu 6 bytes, 48 us; its backward 10 bytes, 336 MB, 80 us. The memory
/// leaves time for 7 instructions a byte, 43 an element of swiglu; with the accurate sigmoid it would
/// need 46.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksEach = 4;  ///< packs of every input that a thread asks for before it waits for one

/// A map: `kIn` numbers, which were stored as In, to `kOut`, which are then stored as Out.
struct AddMap {
  static constexpr int kIn = 2, kOut = 1;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    out[0] = in[0] + in[1];
  }
};
struct CastMap {
  static constexpr int kIn = 1, kOut = 1;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    out[0] = in[0];
  }
};
struct SwiGluMap {
  static constexpr int kIn = 2, kOut = 1;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    out[0] = in[0] * sigmoid<Out>(in[0]) * in[1];
  }
};
struct SwiGluBackwardMap {
  static constexpr int kIn = 3, kOut = 2;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    const float g = in[0], u = in[1], dy = in[2], s = sigmoid<Out>(g);
    out[0] = dy * u * s * (1.0f + g * (1.0f - s));
    out[1] = dy * g * s;
  }
};
/// Written so that a NaN stays one.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
struct SquaredReluMap {
  static constexpr int kIn = 1, kOut = 1;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    const float r = relu(in[0]);
    out[0] = r * r;
  }
};
/// The square root as T. In BF16 the hardware's, whose error of 2^-22 does not matter: no root of a BF16
/// number lies nearer than 2^-20 to the middle of two neighbours, which has nine bits and its square at
/// least 17.
template <class T>
__device__ __forceinline__ float root(float y) {
  if constexpr (sizeof(T) == 4) return sqrtf(y);
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(y));
  return bf16::nearest(r).value();
}
struct SquaredReluBackwardMap {
  static constexpr int kIn = 2, kOut = 1;
  template <class In, class Out>
  __device__ static void apply(const float (&in)[kIn], float (&out)[kOut]) {
    out[0] = 2.0f * root<In>(in[0]) * in[1];
  }
};

/// n / divisor for n below 2^31, as a product.
class Division {
 public:
  Division() = default;
  explicit Division(std::uint32_t divisor) {
    while ((std::uint64_t{1} << (shift_ - 31)) < divisor) ++shift_;
    factor_ = ((std::uint64_t{1} << shift_) + divisor - 1) / divisor;
  }
  __device__ __forceinline__ std::uint32_t of(std::uint32_t n) const {
    return static_cast<std::uint32_t>(n * factor_ >> shift_);
  }

 private:
  std::uint64_t factor_ = 0;  ///< at most 2^32
  unsigned shift_ = 31;       ///< 2^shift >= 2^31 divisor: the factor's error stays below one n in 2^31
};
constexpr std::int64_t kMostPacks = std::int64_t{1} << 31;

template <class Map>
struct Operands {
  AnyRows in[Map::kIn], out[Map::kOut];
  std::int64_t rows = 0, columns = 0;
  std::uint32_t* amax = nullptr;  ///< one place a block, or null; of all outputs
};

/// All inputs stored as In, all outputs as Out, everything in packs. A block has kThreads * kPacksEach packs,
/// counted from row to row: no block is half empty, whatever a row's length.
template <class Map, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const Operands<Map> o, std::uint32_t packs, std::uint32_t packs_of_row, Division by_row) {
  constexpr int kPack = kPackOf<In, Out>;
  const std::uint32_t first = blockIdx.x * (kThreads * kPacksEach) + threadIdx.x;
  std::int64_t row[kPacksEach], column[kPacksEach];
  Stored<In, kPack> in[kPacksEach][Map::kIn];
#pragma unroll
  for (int p = 0; p < kPacksEach; ++p) {
    const std::uint32_t pack = first + p * kThreads, r = by_row.of(pack);
    row[p] = r;
    column[p] = (pack - r * packs_of_row) * kPack;
    if (pack >= packs) continue;
#pragma unroll
    for (int k = 0; k < Map::kIn; ++k) in[p][k].load(o.in[k].template at<In>(row[p], column[p]));
  }
  std::uint32_t most = 0;
#pragma unroll
  for (int p = 0; p < kPacksEach; ++p) {
    if (first + p * kThreads >= packs) continue;
    float out[Map::kOut][kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float x[Map::kIn], y[Map::kOut];
#pragma unroll
      for (int k = 0; k < Map::kIn; ++k) x[k] = in[p][k][i];
      Map::template apply<In, Out>(x, y);
#pragma unroll
      for (int k = 0; k < Map::kOut; ++k) out[k][i] = y[k];
    }
#pragma unroll
    for (int k = 0; k < Map::kOut; ++k) store_pack(o.out[k].template at<Out>(row[p], column[p]), out[k]);
    if (o.amax == nullptr) continue;
#pragma unroll
    for (int k = 0; k < Map::kOut; ++k)
#pragma unroll
      for (int i = 0; i < kPack; ++i) most = max(most, magnitude_bits(out[k][i]));
  }
  if (o.amax != nullptr) leave_amax<kThreads>(most, o.amax + blockIdx.x);
}

/// Any types, strides and sizes; First is the first input's type. A block has kThreads * kPacksEach elements
/// of one row.
template <class Map, class First>
__global__ void __launch_bounds__(kThreads) any_map_kernel(const Operands<Map> o, unsigned blocks_per_row) {
  const std::int64_t row = blockIdx.x / blocks_per_row;
  std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x % blocks_per_row) * (kThreads * kPacksEach) + threadIdx.x;
  std::uint32_t most = 0;
#pragma unroll
  for (int p = 0; p < kPacksEach; ++p, column += kThreads) {
    if (column >= o.columns) break;
    float x[Map::kIn], y[Map::kOut];
#pragma unroll
    for (int k = 0; k < Map::kIn; ++k) x[k] = o.in[k].get(row, column);
    Map::template apply<First, float>(x, y);
#pragma unroll
    for (int k = 0; k < Map::kOut; ++k) {
      o.out[k].set(row, column, y[k]);
      most = max(most, magnitude_bits(y[k]));
    }
  }
  if (o.amax != nullptr) leave_amax<kThreads>(most, o.amax + blockIdx.x);
}

/// Calls `start` with the operands, which have a place a block for the amax where one is asked for, and
/// finishes it.
template <class Map, class F>
void with_amax_places(Stream& stream, std::string_view op, Operands<Map> o, std::int64_t blocks, float* amax,
                      F&& start) {
  const ArenaScope scope(stream.scratch());
  View<std::uint32_t> partial;
  if (amax != nullptr) partial = stream.scratch().take<std::uint32_t>(blocks);
  o.amax = partial.data();
  start(o);
  if (amax != nullptr) finish_amax(stream, op, partial, o.out[0].is_bf16, amax);
}

template <class Map, class In, class Out>
void launch_packs(Stream& stream, std::string_view op, const Operands<Map>& o, float* amax) {
  const std::uint32_t of_row = static_cast<std::uint32_t>(o.columns / kPackOf<In, Out>);
  const std::uint32_t packs = static_cast<std::uint32_t>(o.rows) * of_row;
  const unsigned blocks = blocks_for(packs, kThreads * kPacksEach);
  with_amax_places(stream, op, o, blocks, amax, [&](const Operands<Map>& with) {
    launch(stream, op, map_kernel<Map, In, Out>, dim3(blocks), dim3(kThreads), 0, with, packs, of_row,
           Division(of_row));
  });
}

template <class Map>
void launch_any(Stream& stream, std::string_view op, const Operands<Map>& o, float* amax) {
  const unsigned blocks_per_row = std::max(1u, blocks_for(o.columns, kThreads * kPacksEach));
  const std::int64_t blocks = o.rows * blocks_per_row;
  with_amax_places(stream, op, o, blocks, amax, [&](const Operands<Map>& with) {
    launch(stream, op, o.in[0].is_bf16 ? any_map_kernel<Map, bf16> : any_map_kernel<Map, float>,
           dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, with, blocks_per_row);
  });
}

/// Whether all packs of eight (which suits either type) lie as map_kernel needs them.
template <class Map>
bool all_packs(const Operands<Map>& o) {
  if (o.columns == 0 || o.rows * o.columns / 4 >= kMostPacks) return false;
  const auto fits = [&](const AnyRows& v) {
    return aligned(v.data) && (o.rows <= 1 || v.stride % 8 == 0) && o.columns % 8 == 0;
  };
  return std::all_of(std::begin(o.in), std::end(o.in), fits) &&
         std::all_of(std::begin(o.out), std::end(o.out), fits);
}

template <class Map>
void run_map(Stream& stream, std::string_view op, const Operands<Map>& o, float* amax = nullptr) {
  bool in_bf16 = true, in_f32 = true, out_bf16 = true, out_f32 = true;
  for (const AnyRows& v : o.in) (v.is_bf16 ? in_f32 : in_bf16) = false;
  for (const AnyRows& v : o.out) (v.is_bf16 ? out_f32 : out_bf16) = false;
  if (all_packs(o)) {
    if (in_bf16 && out_bf16) return launch_packs<Map, bf16, bf16>(stream, op, o, amax);
    if (in_f32 && out_f32) return launch_packs<Map, float, float>(stream, op, o, amax);
    if constexpr (std::is_same_v<Map, CastMap>)
      return in_f32 ? launch_packs<Map, float, bf16>(stream, op, o, amax)
                    : launch_packs<Map, bf16, float>(stream, op, o, amax);
  }
  launch_any(stream, op, o, amax);
}

/// The matrix's columns from `begin` on, of which an operand uses as many as it needs.
AnyRows columns_from(const ConstRealView& v, std::int64_t begin) {
  return v.slice(1, begin, v.size(1) - begin);
}

constexpr int kSumRows = 128;  ///< of a tile of column_sum
constexpr int kWarps = kThreads / kWarp;

/// Column sums of a tile of rows: each lane has a pack of columns, each warp every eighth row.
template <class T, int kPack>
__global__ void __launch_bounds__(kThreads)
    column_sum_kernel(const AnyRows x, std::int64_t rows, std::int64_t columns, float* partial) {
  constexpr int kColumns = kWarp * kPack;
  __shared__ float sums[kWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSumRows;
  const std::int64_t end = min(rows, begin + kSumRows);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kColumns;
  float sum[kPack] = {};
  if (first + lane * kPack < columns) {
#pragma unroll 4
    for (std::int64_t r = begin + warp; r < end; r += kWarps) {
      Stored<T, kPack> v;
      v.load(x.at<T>(r, first + lane * kPack));
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) sums[warp][lane * kPack + i] = sum[i];
  __syncthreads();
  const std::int64_t column = first + threadIdx.x;
  if (threadIdx.x >= kColumns || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
  partial[blockIdx.x * columns + column] = total;
}

template <class T, int kPack>
void launch_column_sum(Stream& stream, const ColumnSum& c) {
  constexpr std::string_view op = "column_sum";
  const std::int64_t T_ = c.x_TN.size(0), N = c.x_TN.size(1);
  const unsigned tiles = blocks_for(T_, kSumRows);
  const ArenaScope scope(stream.scratch());
  const View<float> partial = stream.scratch().take<float>(tiles, N);
  launch(stream, op, column_sum_kernel<T, kPack>, dim3(tiles, blocks_for(N, kWarp * kPack)), dim3(kThreads),
         0, AnyRows(c.x_TN), T_, N, partial.data());
  add_column_partials(stream, op, partial, c.sum_N);
}

}  // namespace

void run(Stream& stream, const Add& a) {
  run_map<AddMap>(
      stream, "add",
      {.in = {a.x_TD, a.y_TD}, .out = {a.x_TD}, .rows = a.x_TD.size(0), .columns = a.x_TD.size(1)});
}

void run(Stream& stream, const Cast& c) {
  run_map<CastMap>(stream, "cast",
                   {.in = {c.in_TD}, .out = {c.out_TD}, .rows = c.in_TD.size(0), .columns = c.in_TD.size(1)});
}

void run(Stream& stream, const SwiGlu& s) {
  const std::int64_t F = s.y_TF.size(1);
  run_map<SwiGluMap>(stream, "swiglu",
                     {.in = {columns_from(s.gate_up_T2F, 0), columns_from(s.gate_up_T2F, F)},
                      .out = {s.y_TF},
                      .rows = s.y_TF.size(0),
                      .columns = F},
                     s.amax);
}

void run(Stream& stream, const SwiGluBackward& s) {
  const std::int64_t F = s.dy_TF.size(1);
  run_map<SwiGluBackwardMap>(stream, "swiglu_backward",
                             {.in = {columns_from(s.gate_up_T2F, 0), columns_from(s.gate_up_T2F, F), s.dy_TF},
                              .out = {columns_from(s.dgate_up_T2F, 0), columns_from(s.dgate_up_T2F, F)},
                              .rows = s.dy_TF.size(0),
                              .columns = F},
                             s.amax);
}

void run(Stream& stream, const SquaredRelu& s) {
  run_map<SquaredReluMap>(
      stream, "squared_relu",
      {.in = {s.x_TF}, .out = {s.y_TF}, .rows = s.x_TF.size(0), .columns = s.x_TF.size(1)}, s.amax);
}

void run(Stream& stream, const SquaredReluBackward& s) {
  run_map<SquaredReluBackwardMap>(
      stream, "squared_relu_backward",
      {.in = {s.y_TF, s.dy_TF}, .out = {s.dx_TF}, .rows = s.y_TF.size(0), .columns = s.y_TF.size(1)}, s.amax);
}

void run(Stream& stream, const ColumnSum& c) {
  const bool packs = in_packs<8>(c.x_TN, c.x_TN.size(1));
  if (c.x_TN.dtype() == DType::BF16)
    packs ? launch_column_sum<bf16, 8>(stream, c) : launch_column_sum<bf16, 1>(stream, c);
  else
    packs ? launch_column_sum<float, 4>(stream, c) : launch_column_sum<float, 1>(stream, c);
}

}  // namespace nibble::cuda
