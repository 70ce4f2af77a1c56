// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/norm_rows.cuh"
#include "ops/norm/rms_norm.h"
#include "ops/second_stage.h"

/// The three norms forward: plain, after the residual add, and gated. They differ in where the values come
/// from.
///
/// Floors at T = 16384, D = 2048 and 4.2 TB/s, BF16: rms_norm 4 bytes an element, 134 MB, 32 us;
/// add_rms_norm 8 bytes, 268 MB, 64 us; gated_rms_norm 6 bytes, 201 MB, 48 us. The weight is read once a
/// block and four rows. Each row lies in registers between its two uses, and the next one is on its way
/// meanwhile.
namespace nibble::cuda {
namespace {

enum class Source { Plain, Add, Gated };

/// Rows of T x groups parts of D columns each.
struct Norm {
  AnyRows x, y, sum, out;  ///< y: what is added, or the gate
  const float* w = nullptr;
  float* rstd = nullptr;
  std::int64_t rstd_stride = 1;
  std::uint32_t* amax = nullptr;  ///< one place a block, or null
  std::int64_t T = 0;
  int groups = 1, D = 0;
  float eps = 0;
};

constexpr int kRounds = 4;  ///< rows that a block takes one after the other

/// The value that is normalised; a sum is still to be rounded.
template <Source kSource>
__device__ __forceinline__ float source_value(float x, float y) {
  if constexpr (kSource == Source::Add)
    return x + y;
  else if constexpr (kSource == Source::Gated)
    return x * (y * sigmoid(y));
  else
    return x;
}

/// Blocks that a multiprocessor should hold at once: as many as the registers of a row allow without
/// spilling.
template <Source kSource, class Shape, class X, class Y>
constexpr int blocks_at_once() {
  constexpr bool kNarrow = sizeof(X) + sizeof(Y) == 4, kPlain = kSource == Source::Plain;
  if (Shape::kElements == 16) return blocks_of_warps<Shape>(!kNarrow ? 16 : kPlain ? 32 : 20);
  if (!kNarrow) return blocks_of_warps<Shape>(Shape::kElements == 24 ? 12 : 8);
  return blocks_of_warps<Shape>(kPlain ? 20 : 16);
}

template <Source kSource, class Shape, class X, class Y>
__global__ void __launch_bounds__(Shape::kThreads, (blocks_at_once<kSource, Shape, X, Y>()))
    norm_kernel(const Norm n) {
  using P = Packs<Shape, kPackOf<X, Y>>;
  constexpr int kPack = kPackOf<X, Y>;
  constexpr bool kHasY = kSource != Source::Plain;
  const int group = static_cast<int>(blockIdx.y), left = n.D - P::first();
  const std::int64_t first = static_cast<std::int64_t>(group) * n.D + P::first();
  std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (Shape::kRows * kRounds) +
                   static_cast<int>(threadIdx.x) / Shape::kGroup;
  const std::int64_t end = min(n.T, (static_cast<std::int64_t>(blockIdx.x) + 1) * (Shape::kRows * kRounds));

  RowPacks<Shape, kPack, float> w;
  w.load(n.w + first, left);
  RowPacks<Shape, kPack, X> x;
  RowPacks<Shape, kPack, Y> y;
  if (t < end) {
    x.load(n.x.at<X>(t, first), left);
    if constexpr (kHasY) y.load(n.y.at<Y>(t, first), left);
  }
  std::uint32_t most = 0;
  for (; t < end; t += Shape::kRows) {
    float v[P::kCount][kPack], squares = 0;
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) v[k][i] = source_value<kSource>(x(k, i), kHasY ? y(k, i) : 0.0f);
      if constexpr (kSource == Source::Add) round_to<X>(v[k]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) squares = fmaf(v[k][i], v[k][i], squares);
    }
    if (t + Shape::kRows < end) {
      x.load(n.x.at<X>(t + Shape::kRows, first), left);
      if constexpr (kHasY) y.load(n.y.at<Y>(t + Shape::kRows, first), left);
    }
    if constexpr (kSource == Source::Add) {
      X* sum = n.sum.at<X>(t, first);
#pragma unroll
      for (int k = 0; k < P::kCount; ++k)
        if (k * P::kStep < left) store_pack(sum + k * P::kStep, v[k]);
    }
    const float mean = row_sum<Shape>(squares) / static_cast<float>(n.D);
    const float rstd = 1.0f / sqrtf(mean + n.eps);
    if (P::first() == 0) n.rstd[t * n.rstd_stride + group] = rstd;
    Y* out = n.out.at<Y>(t, first);
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        v[k][i] = v[k][i] * rstd * w(k, i);
        most = max(most, magnitude_bits(v[k][i]));
      }
      if (k * P::kStep < left) store_pack(out + k * P::kStep, v[k]);
    }
  }
  if (n.amax != nullptr) leave_amax<Shape::kThreads>(most, n.amax + blockIdx.y * gridDim.x + blockIdx.x);
}

constexpr int kAnyThreads = 256;

/// Any types, strides and sizes: a block a part of a row, which is read twice. Each thread comes back to the
/// elements it wrote itself.
template <Source kSource>
__global__ void __launch_bounds__(kAnyThreads) any_norm_kernel(const Norm n) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) / n.groups;
  const int group = static_cast<int>(blockIdx.x % static_cast<unsigned>(n.groups));
  const std::int64_t first = static_cast<std::int64_t>(group) * n.D;
  float squares = 0;
  for (std::int64_t d = first + threadIdx.x; d < first + n.D; d += kAnyThreads) {
    float v = n.x.get(t, d);
    if constexpr (kSource == Source::Add) {
      n.sum.set(t, d, v + n.y.get(t, d));
      v = n.sum.get(t, d);
    } else if constexpr (kSource == Source::Gated) {
      v = source_value<kSource>(v, n.y.get(t, d));
    }
    squares = fmaf(v, v, squares);
  }
  const float mean = block_sum<kAnyThreads>(squares) / static_cast<float>(n.D);
  const float rstd = 1.0f / sqrtf(mean + n.eps);
  if (threadIdx.x == 0) n.rstd[t * n.rstd_stride + group] = rstd;
  std::uint32_t most = 0;
  for (std::int64_t d = first + threadIdx.x; d < first + n.D; d += kAnyThreads) {
    float v = 0;
    if constexpr (kSource == Source::Add)
      v = n.sum.get(t, d);
    else
      v = source_value<kSource>(n.x.get(t, d), kSource == Source::Gated ? n.y.get(t, d) : 0.0f);
    const float out = v * rstd * n.w[d];
    most = max(most, magnitude_bits(out));
    n.out.set(t, d, out);
  }
  if (n.amax != nullptr) leave_amax<kAnyThreads>(most, n.amax + blockIdx.x);
}

/// Scratch memory for the largest magnitude of every block, where the caller asked for it.
struct AmaxPlaces {
  AmaxPlaces(Stream& stream, std::int64_t blocks, float* amax) : scope(stream.scratch()), amax(amax) {
    if (amax != nullptr) partial = stream.scratch().take<std::uint32_t>(blocks);
  }
  void finish(Stream& stream, std::string_view op, const Norm& n) const {
    if (amax != nullptr) finish_amax(stream, op, partial, n.out.is_bf16, amax);
  }

  ArenaScope scope;
  float* amax;
  View<std::uint32_t> partial;
};

/// X: the type of x and of the sum; Y: of the rest. False where a row is too long for registers.
template <Source kSource, class X, class Y>
bool run_packs(Stream& stream, std::string_view op, Norm n, float* amax) {
  return with_row_shape(n.D, [&](auto shape) {
    using Shape = decltype(shape);
    const unsigned blocks = blocks_for(n.T, Shape::kRows * kRounds);
    const AmaxPlaces places(stream, std::int64_t{blocks} * n.groups, amax);
    n.amax = places.partial.data();
    launch(stream, op, norm_kernel<kSource, Shape, X, Y>, dim3(blocks, static_cast<unsigned>(n.groups)),
           dim3(Shape::kThreads), 0, n);
    places.finish(stream, op, n);
  });
}

template <Source kSource>
void run_any(Stream& stream, std::string_view op, Norm n, float* amax) {
  const std::int64_t blocks = n.T * n.groups;
  const AmaxPlaces places(stream, blocks, amax);
  n.amax = places.partial.data();
  launch(stream, op, any_norm_kernel<kSource>, dim3(static_cast<unsigned>(blocks)), dim3(kAnyThreads), 0, n);
  places.finish(stream, op, n);
}

/// The types that recipes use have kernels of their own: the residual stream's type for x and the sum, the
/// activations' type for the rest. `packs`: everything lies in packs and the types fit.
template <Source kSource>
void run_norm(Stream& stream, std::string_view op, const Norm& n, bool packs, float* amax) {
  bool done = false;
  if (packs && n.x.is_bf16 && n.out.is_bf16)
    done = run_packs<kSource, bf16, bf16>(stream, op, n, amax);
  else if (packs && !n.x.is_bf16 && !n.out.is_bf16)
    done = run_packs<kSource, float, float>(stream, op, n, amax);
  else if constexpr (kSource != Source::Gated)
    done = packs && !n.x.is_bf16 && run_packs<kSource, float, bf16>(stream, op, n, amax);
  if (!done) run_any<kSource>(stream, op, n, amax);
}

}  // namespace

void run(Stream& stream, const RmsNorm& a) {
  Norm n;
  n.x = a.x_TD;
  n.out = a.y_TD;
  n.w = a.w_D.data();
  n.rstd = a.rstd_T.data();
  n.T = a.x_TD.size(0);
  n.D = static_cast<int>(a.x_TD.size(1));
  n.eps = a.eps;
  run_norm<Source::Plain>(stream, "rms_norm", n,
                          in_packs<8>(a.x_TD, n.D) && in_packs<8>(a.y_TD, n.D) && aligned(a.w_D.data()),
                          a.amax);
}

void run(Stream& stream, const AddRmsNorm& a) {
  Norm n;
  n.x = a.x_TD;
  n.y = a.y_TD;
  n.sum = a.sum_TD;
  n.out = a.normed_TD;
  n.w = a.w_D.data();
  n.rstd = a.rstd_T.data();
  n.T = a.x_TD.size(0);
  n.D = static_cast<int>(a.x_TD.size(1));
  n.eps = a.eps;
  const bool types = a.sum_TD.dtype() == a.x_TD.dtype() && a.y_TD.dtype() == a.normed_TD.dtype();
  run_norm<Source::Add>(stream, "add_rms_norm", n,
                        types && in_packs<8>(a.x_TD, n.D) && in_packs<8>(a.y_TD, n.D) &&
                            in_packs<8>(a.sum_TD, n.D) && in_packs<8>(a.normed_TD, n.D) &&
                            aligned(a.w_D.data()),
                        a.amax);
}

void run(Stream& stream, const GatedRmsNorm& a) {
  Norm n;
  n.x = a.y_TD;
  n.y = a.z_TD;
  n.out = a.out_TD;
  n.w = a.w_D.data();
  n.rstd = a.rstd_TG.data();
  n.rstd_stride = a.rstd_TG.stride(0);
  n.T = a.y_TD.size(0);
  n.groups = a.groups;
  n.D = static_cast<int>(a.y_TD.size(1) / a.groups);
  n.eps = a.eps;
  const bool types = a.y_TD.dtype() == a.z_TD.dtype() && a.y_TD.dtype() == a.out_TD.dtype();
  run_norm<Source::Gated>(stream, "gated_rms_norm", n,
                          types && in_packs<8>(a.y_TD, n.D) && in_packs<8>(a.z_TD, n.D) &&
                              in_packs<8>(a.out_TD, n.D) && aligned(a.w_D.data()),
                          a.amax);
}

}  // namespace nibble::cuda
