// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/norm_rows.cuh"
#include "ops/norm/rms_norm.h"
#include "ops/second_stage.h"

/// The norms backward. A block takes a tile of rows one after the other, so that every thread keeps its
/// columns of dw in registers; what it has at the end is the tile's partial sum, and a second kernel adds the
/// tiles in order. Tiles are fixed by the shape, whatever the GPU.
///
/// Floors at T = 16384, D = 2048 and 4.2 TB/s, BF16: rms_norm_backward reads x, dy and the FP32 dx, writes dx
/// and its copy: 14 bytes an element, 470 MB, 112 us (12 bytes, 96 us without the copy; 8 bytes, 64 us with a
/// dx in BF16); gated_rms_norm_backward reads y, z, dout, writes dy, dz: 10 bytes, 336 MB, 80 us. Partial
/// sums add 8 bytes a tile and column: 4 %.
namespace nibble::cuda {
namespace {

/// Rows of a tile: sixteen where a block has one row at a time, else eight for each of its four warps.
template <class Shape>
inline constexpr int kTile = Shape::kRows == 1 ? 16 : 8 * Shape::kRows;

/// Blocks that a multiprocessor should hold at once: as many as the registers of a row allow without
/// spilling. A block waits for its rows, so what the others load meanwhile has to do: at models' widths up to
/// 2048 all of them have 55 kB or more on their way. G: the type of dx.
template <class Shape, class X, class G>
constexpr int blocks_at_once() {
  constexpr bool kNarrow = sizeof(G) == 2;
  if (Shape::kElements == 16) return blocks_of_warps<Shape>(kNarrow ? 20 : 16);
  if (Shape::kElements == 24) return blocks_of_warps<Shape>(kNarrow ? 16 : 12);
  return blocks_of_warps<Shape>(sizeof(X) == 2 ? 12 : 8);
}
template <class Shape, class Y>
constexpr int gated_blocks_at_once() {
  constexpr bool kNarrow = sizeof(Y) == 2;
  if (Shape::kElements == 16) return blocks_of_warps<Shape>(kNarrow ? 20 : 12);
  return blocks_of_warps<Shape>(kNarrow ? 12 : 8);
}

/// Whether a thread keeps its weights in registers: where that costs no block. One of 256 threads has the
/// multiprocessor to itself either way.
template <class Shape>
inline constexpr bool kKeepsWeight = Shape::kThreads == 256 || Shape::kElements < 32;

/// The sums of a block's rows, from each thread's, to the tile's partial sum: warps that have rows of their
/// own are added in order. `mine` is this thread's first column there.
template <class Shape, int kPack>
__device__ __forceinline__ void leave_columns(const float (&dw)[Packs<Shape, kPack>::kCount][kPack],
                                              float* row, int left) {
  using P = Packs<Shape, kPack>;
  if constexpr (Shape::kRows == 1) {
#pragma unroll
    for (int k = 0; k < P::kCount; ++k)
      if (k * P::kStep < left) store_pack(row + P::first() + k * P::kStep, dw[k]);
  } else {
    __shared__ float sums[Shape::kRows][Shape::kColumns];
    float* mine = sums[threadIdx.x / Shape::kGroup] + P::first();
#pragma unroll
    for (int k = 0; k < P::kCount; ++k)
#pragma unroll
      for (int i = 0; i < kPack; ++i) mine[k * P::kStep + i] = dw[k][i];
    __syncthreads();
    const int columns = left + P::first();
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += Shape::kThreads) {
      float sum = sums[0][c];
#pragma unroll
      for (int r = 1; r < Shape::kRows; ++r) sum += sums[r][c];
      row[c] = sum;
    }
  }
}

struct NormBackward {
  AnyRows x, dy, dx, copy;
  const float *w = nullptr, *rstd = nullptr;
  float* partial = nullptr;       ///< [tiles, D]
  std::uint32_t* amax = nullptr;  ///< one place a tile, or null; of copy, without one of dx
  std::int64_t T = 0;
  int D = 0;
};

template <class Shape, class X, class Y, class G>
__global__ void __launch_bounds__(Shape::kThreads, (blocks_at_once<Shape, X, G>()))
    norm_backward_kernel(const NormBackward n) {
  // Packs of four beside an FP32 gradient, which has most of the bytes and may have a copy.
  constexpr bool kMayCopy = sizeof(G) == 4;
  constexpr int kPack = kPackOf<X, G>;
  using P = Packs<Shape, kPack>;
  const int left = n.D - P::first();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTile<Shape>;
  const std::int64_t end = min(n.T, begin + kTile<Shape>);
  const float inverse_d = 1.0f / static_cast<float>(n.D);

  constexpr bool kKeeps = kKeepsWeight<Shape> && (kMayCopy || Shape::kThreads == 256);
  const RowWeight<Shape, kPack, kKeeps> weight(n.w + P::first(), left);
  float dw[P::kCount][kPack] = {};
  std::uint32_t most = 0;
#pragma unroll 1
  for (std::int64_t t = begin + threadIdx.x / Shape::kGroup; t < end; t += Shape::kRows) {
    RowPacks<Shape, kPack, X> x;
    RowPacks<Shape, kPack, Y> dy;
    RowPacks<Shape, kPack, G> dx;
    G* dx_row = n.dx.at<G>(t, P::first());
    Y* copy_row = n.copy.empty() ? nullptr : n.copy.at<Y>(t, P::first());
    x.load(n.x.at<X>(t, P::first()), left);
    dy.load(n.dy.at<Y>(t, P::first()), left);
    dx.load(dx_row, left);
    const float rstd = n.rstd[t];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
      const Stored<float, kPack> w = weight.pack(k);
#pragma unroll
      for (int i = 0; i < kPack; ++i) dot = fmaf(dy(k, i) * w[i], x(k, i), dot);
    }
    const float mean = row_sum<Shape>(dot) * rstd * inverse_d;
    x.forget_derived();
    dy.forget_derived();
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
      const Stored<float, kPack> w = weight.pack(k);
      float out[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float xhat = x(k, i) * rstd;
        out[i] = fmaf(rstd, fmaf(-xhat, mean, dy(k, i) * w[i]), dx(k, i));
        dw[k][i] = fmaf(dy(k, i), xhat, dw[k][i]);
        most = max(most, magnitude_bits(out[i]));
      }
      if (k * P::kStep >= left) continue;
      store_pack(dx_row + k * P::kStep, out);
      if (kMayCopy && copy_row != nullptr) store_pack(copy_row + k * P::kStep, out);
    }
  }
  leave_columns<Shape, kPack>(dw, n.partial + static_cast<std::int64_t>(blockIdx.x) * n.D, left);
  if (n.amax != nullptr) leave_amax<Shape::kThreads>(most, n.amax + blockIdx.x);
}

struct GatedBackward {
  AnyRows y, z, dout, dy, dz;
  const float *w = nullptr, *rstd = nullptr;
  std::int64_t rstd_stride = 1;
  float* partial = nullptr;  ///< [tiles, groups * D]
  std::int64_t T = 0;
  int groups = 1, D = 0;  ///< D: columns of a group
};

template <class Shape, class Y>
__global__ void __launch_bounds__(Shape::kThreads, (gated_blocks_at_once<Shape, Y>()))
    gated_backward_kernel(const GatedBackward n) {
  constexpr int kPack = kPackOf<Y, Y>;
  using P = Packs<Shape, kPack>;
  const int group = static_cast<int>(blockIdx.y), left = n.D - P::first();
  const std::int64_t first = static_cast<std::int64_t>(group) * n.D + P::first();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTile<Shape>;
  const std::int64_t end = min(n.T, begin + kTile<Shape>);
  const float inverse_d = 1.0f / static_cast<float>(n.D);

  const RowWeight<Shape, kPack, kKeepsWeight<Shape>> weight(n.w + first, left);
  float dw[P::kCount][kPack] = {};
  for (std::int64_t t = begin + threadIdx.x / Shape::kGroup; t < end; t += Shape::kRows) {
    RowPacks<Shape, kPack, Y> y, z, dout;
    y.load(n.y.at<Y>(t, first), left);
    z.load(n.z.at<Y>(t, first), left);
    dout.load(n.dout.at<Y>(t, first), left);
    const float rstd = n.rstd[t * n.rstd_stride + group];
    float sigma[P::kCount][kPack], dot = 0;
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
      const Stored<float, kPack> w = weight.pack(k);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        sigma[k][i] = sigmoid(z(k, i));
        dot = fmaf(dout(k, i) * w[i], y(k, i) * (z(k, i) * sigma[k][i]), dot);
      }
    }
    const float mean = row_sum<Shape>(dot) * rstd * inverse_d;
    y.forget_derived();
    z.forget_derived();
    dout.forget_derived();
    Y *dy_row = n.dy.at<Y>(t, first), *dz_row = n.dz.at<Y>(t, first);
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
      const Stored<float, kPack> w = weight.pack(k);
      float dy[kPack], dz[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float s = sigma[k][i], silu = z(k, i) * s, rhat = y(k, i) * silu * rstd;
        const float dr = rstd * fmaf(-rhat, mean, dout(k, i) * w[i]);
        dw[k][i] = fmaf(dout(k, i), rhat, dw[k][i]);
        dy[i] = dr * silu;
        dz[i] = dr * y(k, i) * s * (1.0f + z(k, i) * (1.0f - s));
      }
      if (k * P::kStep >= left) continue;
      store_pack(dy_row + k * P::kStep, dy);
      store_pack(dz_row + k * P::kStep, dz);
    }
  }
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * n.groups + group;
  leave_columns<Shape, kPack>(dw, n.partial + row * n.D, left);
}

constexpr int kAnyThreads = 256, kAnyTile = 16;

/// Any types, strides and sizes: rows are read twice, and a thread's columns of dw wait in the partial sum.
__global__ void __launch_bounds__(kAnyThreads) any_norm_backward_kernel(const NormBackward n) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kAnyTile;
  const std::int64_t end = min(n.T, begin + kAnyTile);
  float* partial = n.partial + static_cast<std::int64_t>(blockIdx.x) * n.D;
  std::uint32_t most = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    const float rstd = n.rstd[t];
    float dot = 0;
    for (int d = static_cast<int>(threadIdx.x); d < n.D; d += kAnyThreads)
      dot = fmaf(n.dy.get(t, d) * n.w[d], n.x.get(t, d), dot);
    const float mean = block_sum<kAnyThreads>(dot) * rstd / static_cast<float>(n.D);
    for (int d = static_cast<int>(threadIdx.x); d < n.D; d += kAnyThreads) {
      const float dy = n.dy.get(t, d), xhat = n.x.get(t, d) * rstd;
      const float out = fmaf(rstd, fmaf(-xhat, mean, dy * n.w[d]), n.dx.get(t, d));
      n.dx.set(t, d, out);
      if (!n.copy.empty()) n.copy.set(t, d, out);
      most = max(most, magnitude_bits(out));
      partial[d] = fmaf(dy, xhat, t == begin ? 0.0f : partial[d]);
    }
  }
  if (n.amax != nullptr) leave_amax<kAnyThreads>(most, n.amax + blockIdx.x);
}

__global__ void __launch_bounds__(kAnyThreads) any_gated_backward_kernel(const GatedBackward n) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kAnyTile;
  const std::int64_t end = min(n.T, begin + kAnyTile);
  const int group = static_cast<int>(blockIdx.y);
  const std::int64_t first = static_cast<std::int64_t>(group) * n.D, last = first + n.D;
  float* partial = n.partial + static_cast<std::int64_t>(blockIdx.x) * n.groups * n.D;
  for (std::int64_t t = begin; t < end; ++t) {
    const float rstd = n.rstd[t * n.rstd_stride + group];
    float dot = 0;
    for (std::int64_t d = first + threadIdx.x; d < last; d += kAnyThreads) {
      const float z = n.z.get(t, d);
      dot = fmaf(n.dout.get(t, d) * n.w[d], n.y.get(t, d) * (z * sigmoid(z)), dot);
    }
    const float mean = block_sum<kAnyThreads>(dot) * rstd / static_cast<float>(n.D);
    for (std::int64_t d = first + threadIdx.x; d < last; d += kAnyThreads) {
      const float y = n.y.get(t, d), z = n.z.get(t, d), s = sigmoid(z), dout = n.dout.get(t, d);
      const float rhat = y * (z * s) * rstd, dr = rstd * fmaf(-rhat, mean, dout * n.w[d]);
      n.dy.set(t, d, dr * (z * s));
      n.dz.set(t, d, dr * y * s * (1.0f + z * (1.0f - s)));
      partial[d] = fmaf(dout, rhat, t == begin ? 0.0f : partial[d]);
    }
  }
}

/// Takes the partial sums of `tiles` tiles, calls f with their place, and adds them to dw.
template <class F>
void with_partials(Stream& stream, std::string_view op, std::int64_t tiles, const View<float>& dw_D, F&& f) {
  const ArenaScope scope(stream.scratch());
  const View<float> partial = stream.scratch().take<float>(tiles, dw_D.size(0));
  f(partial.data());
  add_column_partials(stream, op, partial, dw_D);
}

/// The kernel over `tiles` tiles in blocks of `threads`, and the second stages of dw and of the amax.
void launch_norm_backward(Stream& stream, void (*kernel)(NormBackward), unsigned tiles, int threads,
                          NormBackward n, const RmsNormBackward& a) {
  constexpr std::string_view op = "rms_norm_backward";
  with_partials(stream, op, tiles, a.dw_D, [&](float* partial) {
    n.partial = partial;
    View<std::uint32_t> most;
    if (a.amax != nullptr) most = stream.scratch().take<std::uint32_t>(tiles);
    n.amax = most.data();
    launch(stream, op, kernel, dim3(tiles), dim3(static_cast<unsigned>(threads)), 0, n);
    const bool to_bf16 = n.copy.empty() ? n.dx.is_bf16 : n.copy.is_bf16;
    if (a.amax != nullptr) finish_amax(stream, op, most, to_bf16, a.amax);
  });
}

/// The types of x, dy and dx.
template <class X, class Y, class G>
bool run_packs(Stream& stream, const NormBackward& n, const RmsNormBackward& a) {
  return with_row_shape(n.D, [&](auto shape) {
    using Shape = decltype(shape);
    launch_norm_backward(stream, norm_backward_kernel<Shape, X, Y, G>, blocks_for(n.T, kTile<Shape>),
                         Shape::kThreads, n, a);
  });
}

template <int N>
bool all_in_packs(const RmsNormBackward& a) {
  const std::int64_t D = a.x_TD.size(1);
  return in_packs<N>(a.x_TD, D) && in_packs<N>(a.dy_TD, D) && in_packs<N>(a.dx_TD, D) &&
         (a.dx_copy_TD.empty() || in_packs<N>(a.dx_copy_TD, D)) && aligned(a.w_D.data());
}

/// The types that recipes use have kernels of their own. False: there is none, or something does not lie in
/// packs.
bool run_packs(Stream& stream, const NormBackward& n, const RmsNormBackward& a) {
  if (n.dx.is_bf16)
    return n.x.is_bf16 && n.dy.is_bf16 && all_in_packs<8>(a) && run_packs<bf16, bf16, bf16>(stream, n, a);
  if (!all_in_packs<4>(a) || (!n.copy.empty() && n.copy.is_bf16 != n.dy.is_bf16)) return false;
  if (n.dy.is_bf16)
    return n.x.is_bf16 ? run_packs<bf16, bf16, float>(stream, n, a)
                       : run_packs<float, bf16, float>(stream, n, a);
  return !n.x.is_bf16 && run_packs<float, float, float>(stream, n, a);
}

template <class Y>
bool run_packs(Stream& stream, GatedBackward n, const View<float>& dw_D) {
  constexpr std::string_view op = "gated_rms_norm_backward";
  return with_row_shape(n.D, [&](auto shape) {
    using Shape = decltype(shape);
    const unsigned tiles = blocks_for(n.T, kTile<Shape>);
    with_partials(stream, op, tiles, dw_D, [&](float* partial) {
      n.partial = partial;
      launch(stream, op, gated_backward_kernel<Shape, Y>, dim3(tiles, static_cast<unsigned>(n.groups)),
             dim3(Shape::kThreads), 0, n);
    });
  });
}

}  // namespace

void run(Stream& stream, const RmsNormBackward& a) {
  NormBackward n;
  n.x = a.x_TD;
  n.dy = a.dy_TD;
  n.dx = a.dx_TD;
  n.w = a.w_D.data();
  n.rstd = a.rstd_T.data();
  n.T = a.x_TD.size(0);
  n.D = static_cast<int>(a.x_TD.size(1));
  if (!a.dx_copy_TD.empty()) n.copy = a.dx_copy_TD;
  if (!run_packs(stream, n, a))
    launch_norm_backward(stream, any_norm_backward_kernel, blocks_for(n.T, kAnyTile), kAnyThreads, n, a);
}

void run(Stream& stream, const GatedRmsNormBackward& a) {
  GatedBackward n;
  n.y = a.y_TD;
  n.z = a.z_TD;
  n.dout = a.dout_TD;
  n.dy = a.dy_TD;
  n.dz = a.dz_TD;
  n.w = a.w_D.data();
  n.rstd = a.rstd_TG.data();
  n.rstd_stride = a.rstd_TG.stride(0);
  n.T = a.y_TD.size(0);
  n.groups = a.groups;
  n.D = static_cast<int>(a.y_TD.size(1) / a.groups);
  bool packs = aligned(a.w_D.data());
  for (const AnyRows& v : {n.z, n.dout, n.dy, n.dz}) packs = packs && v.is_bf16 == n.y.is_bf16;
  for (const ConstRealView& v : {a.y_TD, a.z_TD, a.dout_TD, ConstRealView(a.dy_TD), ConstRealView(a.dz_TD)})
    packs = packs && in_packs<8>(v, n.D);
  if (packs && (n.y.is_bf16 ? run_packs<bf16>(stream, n, a.dw_D) : run_packs<float>(stream, n, a.dw_D)))
    return;
  const unsigned tiles = blocks_for(n.T, kAnyTile);
  with_partials(stream, "gated_rms_norm_backward", tiles, a.dw_D, [&](float* partial) {
    n.partial = partial;
    launch(stream, "gated_rms_norm_backward", any_gated_backward_kernel,
           dim3(tiles, static_cast<unsigned>(n.groups)), dim3(kAnyThreads), 0, n);
  });
}

}  // namespace nibble::cuda
