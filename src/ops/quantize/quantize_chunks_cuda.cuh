// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "numeric/random_key.h"
#include "ops/quantize/quantize_matrix_cuda.cuh"
#include "ops/quantize/quantize_words_cuda.cuh"

/// Rows in chunks of eight BF16 numbers, half a block of NVFP4: a lane takes a chunk and its neighbour (lane
/// with the lowest bit flipped) the other half of the block, so that a warp's accesses are whole lines.
/// Device code only.
namespace nibble::cuda {

/// The largest of a chunk's magnitudes, packed in halves, with any sign.
__device__ __forceinline__ std::uint32_t largest_of_chunk(const uint4& x) {
  return larger_halves(larger_halves(x.x, x.y), larger_halves(x.z, x.w));
}

/// How row kernels divide a matrix: an item is a chunk of each of four rows, 64 bytes on their way for a
/// thread. row_items counts them; a kernel is for less than 2^30.
inline std::int64_t row_items(const QuantizeJob& job) { return (job.x_rows + 3) / 4 * (job.x_cols / 8); }
struct RowItems {
  std::uint32_t across, count;

  __device__ __forceinline__ explicit RowItems(const QuantizeJob& job)
      : across(static_cast<std::uint32_t>(job.x_cols / 8)),
        count(static_cast<std::uint32_t>((job.x_rows + 3) / 4) * across) {}
};
/// One of them, zeros where rows are missing; its first `rows_left` rows are in the matrix.
struct FourChunks {
  std::int64_t row, col;
  int rows_left;
  uint4 x[4];

  __device__ __forceinline__ FourChunks(const QuantizeJob& job, const RowItems& items, std::uint32_t item)
      : row(std::int64_t{item / items.across} * 4),
        col(std::int64_t{item % items.across} * 8),
        rows_left(static_cast<int>(job.x_rows - row < 4 ? job.x_rows - row : 4)) {
    const bf16* p = static_cast<const bf16*>(job.x) + row * job.x_stride + col;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = make_uint4(0, 0, 0, 0);
      if (i < rows_left) x[i] = *reinterpret_cast<const uint4*>(p + i * job.x_stride);
    }
  }
};

/// Random bytes of two rows of a block: of row `even` for the lane whose place in the block is even, else of
/// row `odd`; afterwards each lane has the eight bytes of its own chunk in both rows. One Philox block serves
/// sixteen elements.
struct ChunkRandom {
  uint2 even, odd;
};
__device__ __forceinline__ ChunkRandom random_of_chunks(const PhiloxKeys& keys, const RandomKey& key,
                                                        std::uint64_t even_group, std::uint64_t odd_group) {
  const bool second = threadIdx.x % 2 != 0;
  const uint4 mine = draw_sixteen(keys, key, second ? odd_group : even_group);
  const std::uint32_t got_x = __shfl_xor_sync(0xFFFFFFFFu, second ? mine.x : mine.z, 1);
  const std::uint32_t got_y = __shfl_xor_sync(0xFFFFFFFFu, second ? mine.y : mine.w, 1);
  return second ? ChunkRandom{make_uint2(got_x, got_y), make_uint2(mine.z, mine.w)}
                : ChunkRandom{make_uint2(mine.x, mine.y), make_uint2(got_x, got_y)};
}

/// Where a lane's chunks go, from one at (row, col) of the result on.
template <bool kCodes>
struct Destination {
  bf16* values = nullptr;
  std::uint8_t *codes = nullptr, *scales = nullptr;

  __device__ __forceinline__ Destination(const QuantizeJob& job, std::int64_t row, std::int64_t col) {
    if constexpr (kCodes) {
      codes = job.codes + row * job.codes_stride + col / 2;
      scales = job.scales + row * job.scales_stride + col / 16;
    } else {
      values = job.values + row * job.values_stride + col;
    }
  }
  __device__ __forceinline__ void down(const QuantizeJob& job, int rows) {
    if constexpr (kCodes) {
      codes += rows * job.codes_stride;
      scales += rows * job.scales_stride;
    } else {
      values += rows * job.values_stride;
    }
  }
  /// A word of codes; the lane of the block's first half also writes the block's scale.
  __device__ __forceinline__ void put_codes(std::uint32_t word, std::uint32_t scale) const {
    *reinterpret_cast<std::uint32_t*>(codes) = word;
    if (threadIdx.x % 2 == 0) *scales = static_cast<std::uint8_t>(scale);
  }
};

/// Codes a chunk under a scale of the table and writes it.
template <bool kStochastic, bool kCodes>
__device__ __forceinline__ void put_chunk(const Destination<kCodes>& to, const uint4& x, std::uint32_t scale,
                                          const ScaleTable& table, const uint2& random) {
  std::uint32_t bits[8] = {};
  if constexpr (kStochastic) {
#pragma unroll
    for (int j = 0; j < 8; ++j) bits[j] = random_of(j < 4 ? random.x : random.y, j % 4);
  }
  if constexpr (kCodes) {
    to.put_codes(codes_of<kStochastic>(x, scale, table, bits), scale);
  } else {
    const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
    std::uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      out[k] = operands_of<kStochastic>(words[k], scale, table, bits[2 * k], bits[2 * k + 1]);
    store_words(to.values, out);
  }
}

/// Quantises a chunk of each of four rows, kStep rows apart; all lanes of a warp call it. Of the rows from
/// `row` only `rows_left` are in the matrix; a chunk beyond them, or with present = false, takes part in the
/// exchange and is not written.
template <bool kStochastic, bool kCodes, int kStep>
__device__ __forceinline__ void quantize_chunks(const QuantizeJob& job, const ScaleTable& table,
                                                const RandomKey& key, std::int64_t row, std::int64_t col,
                                                const uint4 (&x)[4], int rows_left, bool present) {
  Destination<kCodes> to(job, row, col);
  std::uint64_t group = 0, step = 0;  // of random bytes: rows have whole ones
  if constexpr (kStochastic) {
    group = (key.first_element + static_cast<std::uint64_t>(row * job.row_elements + col)) / 16;
    step = static_cast<std::uint64_t>(kStep * job.row_elements) / 16;
  }
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    ChunkRandom random{};
    if constexpr (kStochastic) {
      random = random_of_chunks(job.philox, key, group, group + step);
      group += 2 * step;
    }
#pragma unroll
    for (int k = i; k < i + 2; ++k) {
      std::uint32_t most = largest_of_chunk(x[k]);
      most = larger_halves(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      if (present && k * kStep < rows_left)
        put_chunk<kStochastic>(to, x[k], table.of(most), table, k == i ? random.even : random.odd);
      to.down(job, kStep);
    }
  }
}

/// What the fast kernels ask of a job's numbers; its layout is each kernel's own question.
inline bool is_fast_nvfp4(const QuantizeJob& job) {
  const QuantSpec& s = job.spec;
  const bool nearest = s.rounding == Rounding::NearestEven;
  const bool draws_groups = job.row_elements % 16 == 0 && job.random.first_element % 16 == 0 &&
                            !job.random.stuck_at_zero;  // of sixteen bytes
  return is_common(s) && s.format == Format::Nvfp4 && s.profile == Profile::Te &&
         s.non_finite == NonFinite::Detect && !job.x_is_f32 &&
         (nearest || (s.rounding == Rounding::Stochastic && draws_groups)) && job.x_cols % 16 == 0 &&
         (job.values == nullptr || job.codes == nullptr) &&
         packs_fit<8>(static_cast<const bf16*>(job.x), job.x_stride) &&
         packs_fit<8>(static_cast<const bf16*>(job.values), job.values_stride);
}

/// Calls f(std::bool_constant stochastic, std::bool_constant codes).
template <class F>
void with_variant(const QuantizeJob& job, F&& f) {
  const bool stochastic = job.spec.rounding == Rounding::Stochastic, codes = job.codes != nullptr;
  if (stochastic && codes) return f(std::true_type{}, std::true_type{});
  if (stochastic) return f(std::true_type{}, std::false_type{});
  if (codes) return f(std::false_type{}, std::true_type{});
  f(std::false_type{}, std::false_type{});
}

/// Blocks of a kernel whose blocks loop: enough to fill the GPU.
inline unsigned looping_blocks(Stream& stream, std::int64_t items, std::int64_t per_block,
                               int per_processor) {
  const std::int64_t needed = (items + per_block - 1) / per_block;
  const std::int64_t most = std::int64_t{per_processor} * cuda_device(stream).multiprocessors();
  return static_cast<unsigned>(needed < most ? needed : most);
}

}  // namespace nibble::cuda
