// SPDX-License-Identifier: Apache-2.0
#include "ops/tile_io_kernels.h"

namespace nibble::cpu::NIBBLE_SIMD {
namespace {

template <class T>
inline void read(const T* __restrict from, std::int64_t stride, const Tile& to) {
  for (std::int64_t i = 0; i < to.used_rows; ++i) {
    float* __restrict row = to.data + i * to.cols;
    for (std::int64_t j = 0; j < to.used_cols; ++j) row[j] = to_float(from[i * stride + j]);
    for (std::int64_t j = to.used_cols; j < to.cols; ++j) row[j] = 0;
  }
  float* rest = to.data + to.used_rows * to.cols;
  for (std::int64_t i = 0; i < (to.rows - to.used_rows) * to.cols; ++i) rest[i] = 0;
}

template <class T>
inline void write(const Tile& from, T* __restrict to, std::int64_t stride) {
  for (std::int64_t i = 0; i < from.used_rows; ++i) {
    const float* __restrict row = from.data + i * from.cols;
    for (std::int64_t j = 0; j < from.used_cols; ++j) to[i * stride + j] = from_float<T>(row[j]);
  }
}

// Four lanes: the largest vector whose shuffles every level has.
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

}  // namespace

void read_tile(const float* from, std::int64_t stride, const Tile& to) { read(from, stride, to); }
void read_tile(const bf16* from, std::int64_t stride, const Tile& to) { read(from, stride, to); }
void write_tile(const Tile& from, float* to, std::int64_t stride) { write(from, to, stride); }
void write_tile(const Tile& from, bf16* to, std::int64_t stride) { write(from, to, stride); }

void transpose_tile(const float* from, std::int64_t from_row, std::int64_t rows, std::int64_t cols, float* to,
                    std::int64_t to_row) {
  for (std::int64_t i = 0; i < rows; i += 4)
    for (std::int64_t j = 0; j < cols; j += 4) {
      const float* f = from + i * from_row + j;
      const Quad r0 = *reinterpret_cast<const Quad*>(f);
      const Quad r1 = *reinterpret_cast<const Quad*>(f + from_row);
      const Quad r2 = *reinterpret_cast<const Quad*>(f + 2 * from_row);
      const Quad r3 = *reinterpret_cast<const Quad*>(f + 3 * from_row);
      const Quad a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
                 b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
      const Quad c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7),
                 d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      float* t = to + j * to_row + i;
      *reinterpret_cast<Quad*>(t) = __builtin_shufflevector(a, b, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(t + to_row) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
      *reinterpret_cast<Quad*>(t + 2 * to_row) = __builtin_shufflevector(c, d, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(t + 3 * to_row) = __builtin_shufflevector(c, d, 2, 3, 6, 7);
    }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
