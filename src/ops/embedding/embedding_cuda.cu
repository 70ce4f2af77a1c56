// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/any_rows.cuh"
#include "ops/embedding/embedding.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// A warp a token. Floor at T = 16384, D = 2048 and 4.2 TB/s, BF16: 4 bytes an element, 134 MB, 32 us; less
/// where frequent rows are found in the L2 cache.
template <class W, class X, int kPack>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const std::int32_t* ids, std::int64_t id_stride, const AnyRows w, const AnyRows x,
                     std::int64_t T, int D) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (t >= T) return;
  const int first = static_cast<int>(threadIdx.x) % kWarp * kPack;
  const W* from = w.at<W>(ids[t * id_stride], first);
  X* to = x.at<X>(t, first);
  constexpr int kStep = kWarp * kPack, kAhead = 4;
  for (int d = 0; d + first < D; d += kAhead * kStep) {
    Stored<W, kPack> in[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (d + k * kStep + first < D) in[k].load(from + d + k * kStep);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (d + k * kStep + first >= D) break;
      float out[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) out[i] = in[k][i];
      store_pack(to + d + k * kStep, out);
    }
  }
}

template <class W, class X>
void launch_embedding(Stream& stream, const Embedding& e) {
  const std::int64_t T = e.ids_T.size(0);
  const int D = static_cast<int>(e.w_VD.size(1));
  const auto launch_with = [&](auto kernel) {
    launch(stream, "embedding", kernel, dim3(blocks_for(T, kWarps)), dim3(kThreads), 0, e.ids_T.data(),
           e.ids_T.stride(0), AnyRows(e.w_VD), AnyRows(e.x_TD), T, D);
  };
  constexpr int kPack = kPackOf<W, X>;
  if (in_packs<kPack>(e.w_VD, D) && in_packs<kPack>(e.x_TD, D))
    launch_with(embedding_kernel<W, X, kPack>);
  else
    launch_with(embedding_kernel<W, X, 1>);
}

/// A token and its id in one number, so that sorting by the upper half keeps the order of the tokens.
__global__ void __launch_bounds__(kThreads)
    pair_kernel(const std::int32_t* ids, std::int64_t id_stride, std::int64_t T, std::uint64_t* pairs) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < T)
    pairs[t] = static_cast<std::uint64_t>(static_cast<std::uint32_t>(ids[t * id_stride])) << 32 |
               static_cast<std::uint32_t>(t);
}

constexpr int kTokens = 32;  ///< sorted tokens that a block looks through for the first one of an id
constexpr int kAhead = 16;   ///< rows of dx on their way at once

/// dw[id] += the dx of its tokens, one after the other: a warp takes kWarp * kPack columns of one id, all of
/// its tokens, and so gives the bits that a plain loop gives. A frequent id is one long chain of additions,
/// but its loads do not wait for each other: with sixteen rows on their way, 3000 tokens take about 200 us
/// beside all the rest, which at T = 65536, D = 2048 takes as long.
///
/// Floor at T = 16384, D = 2048 and 4.2 TB/s: 4 bytes an element of dx (2 in BF16), 8 of each row of dw that
/// occurs; with 5000 different ids 134 + 82 MB, 51 us.
template <class X, int kPack>
__global__ void __launch_bounds__(kThreads)
    embedding_backward_kernel(const std::uint64_t* sorted, std::int64_t T, const X* dx,
                              std::int64_t dx_stride, float* dw, std::int64_t dw_stride, int D) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  const int column = static_cast<int>(blockIdx.y) * kWarp * kPack + lane * kPack;
  const bool inside = column < D;

  const auto pair_at = [&](std::int64_t i) { return i >= 0 && i < T ? sorted[i] : ~std::uint64_t{0}; };
  const auto id_at = [&](std::int64_t i) { return static_cast<std::int64_t>(pair_at(i) >> 32); };
  const std::int64_t here = begin + lane;
  unsigned heads = __ballot_sync(0xFFFFFFFFu, here < T && id_at(here) != id_at(here - 1));
  for (int skip = 0; skip < warp && heads != 0; ++skip) heads &= heads - 1;
  while (heads != 0) {
    const std::int64_t first = begin + __ffs(static_cast<int>(heads)) - 1;
    const std::int64_t id = id_at(first);
    Stored<float, kPack> old;
    float* to = dw + id * dw_stride + column;
    float sum[kPack] = {};
    if (inside) {
      old.load(to);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] = old[i];
    }
    std::uint64_t ahead = pair_at(first + lane);
    for (std::int64_t i = first;; i += kWarp) {
      // The next 32 sorted tokens; those of this id come first.
      const std::uint64_t pair = ahead;
      ahead = pair_at(i + kWarp + lane);
      const int count = __popc(__ballot_sync(0xFFFFFFFFu, static_cast<std::int64_t>(pair >> 32) == id));
      const auto token = static_cast<std::uint32_t>(pair);
      for (int j = 0; j < count; j += kAhead) {
        Stored<X, kPack> rows[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const std::int64_t t = __shfl_sync(0xFFFFFFFFu, token, j + k);
          if (inside && j + k < count) rows[k].load(dx + t * dx_stride + column);
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
#pragma unroll
          for (int c = 0; c < kPack; ++c)
            if (j + k < count) sum[c] += rows[k][c];
      }
      if (count < kWarp) break;
    }
    if (inside) store_pack(to, sum);
    for (int skip = 0; skip < kWarps && heads != 0; ++skip) heads &= heads - 1;
  }
}

/// X: the type of dx.
template <class X>
void add_rows(Stream& stream, const EmbeddingBackward& e, const std::uint64_t* sorted) {
  const std::int64_t T = e.ids_T.size(0);
  const int D = static_cast<int>(e.dw_VD.size(1));
  const auto launch_with = [&](auto kernel, int pack) {
    launch(stream, "embedding_backward", kernel, dim3(blocks_for(T, kTokens), blocks_for(D, kWarp * pack)),
           dim3(kThreads), 0, sorted, T, static_cast<const X*>(e.dx_TD.data()), e.dx_TD.stride(0),
           e.dw_VD.data(), e.dw_VD.stride(0), D);
  };
  if (in_packs<4>(e.dx_TD, D) && in_packs<4>(RealView(e.dw_VD), D))
    launch_with(embedding_backward_kernel<X, 4>, 4);
  else
    launch_with(embedding_backward_kernel<X, 1>, 1);
}

}  // namespace

void run(Stream& stream, const Embedding& e) {
  const bool w_bf16 = e.w_VD.dtype() == DType::BF16, x_bf16 = e.x_TD.dtype() == DType::BF16;
  if (w_bf16)
    x_bf16 ? launch_embedding<bf16, bf16>(stream, e) : launch_embedding<bf16, float>(stream, e);
  else
    x_bf16 ? launch_embedding<float, bf16>(stream, e) : launch_embedding<float, float>(stream, e);
}

void run(Stream& stream, const EmbeddingBackward& e) {
  constexpr std::string_view op = "embedding_backward";
  const std::int64_t T = e.ids_T.size(0), V = e.dw_VD.size(0);
  const int D = static_cast<int>(e.dw_VD.size(1));
  if (T == 0 || D == 0) return;
  const ArenaScope scope(stream.scratch());
  const View<std::uint64_t> pairs = stream.scratch().take<std::uint64_t>(T);
  const View<std::uint64_t> sorted = stream.scratch().take<std::uint64_t>(T);
  launch(stream, op, pair_kernel, dim3(blocks_for(T, kThreads)), dim3(kThreads), 0, e.ids_T.data(),
         e.ids_T.stride(0), T, pairs.data());

  // A stable sort of integers, so its result is a function of the ids alone.
  const int end_bit = 32 + std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(V - 1))));
  const auto sort = [&](void* memory, std::size_t& bytes) {
    cuda_check(cub::DeviceRadixSort::SortKeys(memory, bytes, pairs.data(), sorted.data(),
                                              static_cast<std::uint32_t>(T), 32, end_bit,
                                              cuda_device(stream).stream()),
               op);
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  sort(stream.scratch().take_bytes(bytes), bytes);

  e.dx_TD.dtype() == DType::BF16 ? add_rows<bf16>(stream, e, sorted.data())
                                 : add_rows<float>(stream, e, sorted.data());
}

}  // namespace nibble::cuda
