// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/any_rows.cuh"

/// How the norms' kernels lie over a matrix. A row (or a group of it) belongs to kGroup threads, which hold
/// kElements each in registers: thread i has packs i, i + kGroup, ... of kPack elements. Blocks of four rows
/// where a warp has one, of one row else.
namespace nibble::cuda {

template <int kGroupSize, int kElementsEach>
struct RowShape {
  static constexpr int kGroup = kGroupSize, kElements = kElementsEach;
  static constexpr int kThreads = kGroup == kWarp ? 4 * kWarp : kGroup;
  static constexpr int kRows = kThreads / kGroup;  ///< side by side in a block
  static constexpr int kColumns = kGroup * kElements;
};

/// Blocks of this shape that have so many warps together; at least one.
template <class Shape>
constexpr int blocks_of_warps(int warps) {
  return Shape::kThreads > warps * kWarp ? 1 : warps * kWarp / Shape::kThreads;
}

/// Calls f(RowShape) with the smallest shape that holds `columns`; false where none does.
///
/// Rows in registers are bytes on their way, and an H200 wants some 40 kB of them a multiprocessor. Columns
/// of a shape that the row lacks cost registers all the same, and so does every thread: 896 columns in 128
/// threads of sixteen elements would be 18 kB of the forward pass; a warp of 32 brings 57. Measured, backward
/// in BF16 at 16384 x 1600, 32768 x 1536 and 8192 x 4096: 66, 107 and 79 us with these shapes, 73, 114 and
/// 113 in two warps of 32, the same and eight warps of 32 (floors 50, 96 and 64).
template <class F>
bool with_row_shape(std::int64_t columns, F&& f) {
  if (columns <= 512)
    f(RowShape<32, 16>{});
  else if (columns <= 768)
    f(RowShape<32, 24>{});
  else if (columns <= 1024)
    f(RowShape<32, 32>{});
  else if (columns <= 1536)
    f(RowShape<64, 24>{});
  else if (columns <= 2048)
    f(RowShape<128, 16>{});
  else if (columns <= 4096)
    f(RowShape<256, 16>{});
  else if (columns <= 8192)
    f(RowShape<256, 32>{});
  else
    return false;
  return true;
}

/// The sum over the threads of a row, the same on each of them. All threads of a block call it where a row
/// has more than a warp.
template <class Shape>
__device__ __forceinline__ float row_sum(float x) {
  if constexpr (Shape::kGroup == kWarp)
    return warp_sum(x);
  else
    return block_sum<Shape::kGroup>(x);
}

/// Where this thread's first element lies in a row; pack k is kStep * k elements further.
template <class Shape, int kPack>
struct Packs {
  static constexpr int kCount = Shape::kElements / kPack, kStep = Shape::kGroup * kPack;
  __device__ static __forceinline__ int first() {
    return static_cast<int>(threadIdx.x) % Shape::kGroup * kPack;
  }
};

/// This thread's packs of one row, as they are stored; zeros beyond the last column. `left` columns remain
/// from this thread's first element on.
template <class Shape, int kPack, class T>
struct RowPacks {
  using P = Packs<Shape, kPack>;
  Stored<T, kPack> packs[P::kCount];

  __device__ __forceinline__ void load(const T* mine, int left) {
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) {
      if (k * P::kStep < left)
        packs[k].load(mine + k * P::kStep);
      else
        packs[k] = {};
    }
  }
  __device__ __forceinline__ void forget_derived() {
#pragma unroll
    for (int k = 0; k < P::kCount; ++k) packs[k].forget_derived();
  }
  /// Element i of pack k.
  __device__ __forceinline__ float operator()(int k, int i) const { return packs[k][i]; }
};

/// The weight of this thread's columns, in registers, or where `kKept` is false read again for every row: it
/// lies in the first cache, and the registers hold more rows at once.
template <class Shape, int kPack, bool kKept>
class RowWeight {
 public:
  __device__ __forceinline__ RowWeight(const float* mine, int left) : mine_(mine), left_(left) {
    if constexpr (kKept) kept_.load(mine, left);
  }
  __device__ __forceinline__ Stored<float, kPack> pack(int k) const {
    if constexpr (kKept) return kept_.packs[k];
    Stored<float, kPack> w = {};
    if (k * P::kStep < left_) w.load(mine_ + k * P::kStep);
    return w;
  }

 private:
  using P = Packs<Shape, kPack>;
  const float* mine_;
  int left_;
  RowPacks<Shape, kPack, float> kept_;
};

}  // namespace nibble::cuda
