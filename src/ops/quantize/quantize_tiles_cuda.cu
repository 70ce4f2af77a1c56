// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "ops/quantize/quantize_chunks_cuda.cuh"

/// NVFP4 of the transpose of an aligned BF16 matrix, and of its rows in the same pass.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
/// Blocks on a processor at once: registers allow three.
constexpr int kBlocks = 3;
constexpr int kTokens = 128, kFeatures = 64;  ///< of x in a tile: 16 tokens a warp, 128-byte rows

enum class RowCopy { None, Nearest, Stochastic };

/// Shared memory of a block. Accesses of 16 bytes are served eight lanes at a time, which must fall into
/// different 16-byte columns of a 128-byte row:
///   x           written in rows, read in words down the columns, a warp a row
///   values      row = feature. A lane writes its two columns' 32 bytes, lanes two rows apart: chunk c of row
///               r lies at c ^ (r / 2 % 8). Read a row by sixteen lanes
///   random      of each warp: sixteen bytes for each 16 features of a token, as Philox makes them
struct Shared {
  uint4 x[kTokens][kFeatures / 8];
  uint4 values[kFeatures][kTokens / 8];
  uint4 random[kWarps][16][kFeatures / 16];
  ScaleTable row_table, table;
  std::uint8_t scales[kFeatures][kWarps];
};
static_assert(sizeof(Shared) <= 48 * 1024);

struct Tiles {
  std::uint32_t across, count;
  std::uint32_t flips[16];  ///< the rotation's signs, as what they do to the bits of a float
};

/// The tiles that a block takes one after the other.
struct Walk {
  std::uint32_t tile, down, across;                  ///< the tile, and where it lies
  const std::uint32_t step, step_down, step_across;  ///< to the next one

  __device__ __forceinline__ explicit Walk(const Tiles& tiles)
      : tile(blockIdx.x),
        down(tile / tiles.across),
        across(tile % tiles.across),
        step(gridDim.x),
        step_down(step / tiles.across),
        step_across(step % tiles.across) {}
  /// False where there is no further tile.
  __device__ __forceinline__ bool next(const Tiles& tiles) {
    tile += step;
    down += step_down;
    across += step_across;
    if (across >= tiles.across) {
      across -= tiles.across;
      ++down;
    }
    return tile < tiles.count;
  }
};

/// Where a tile begins in x, and how much of it is in the matrix.
struct Place {
  std::int64_t token, feature;
  int tokens, features;

  __device__ __forceinline__ Place(const QuantizeJob& job, const Walk& walk)
      : token(std::int64_t{walk.down} * kTokens),
        feature(std::int64_t{walk.across} * kFeatures),
        tokens(static_cast<int>(min(job.x_rows - token, std::int64_t{kTokens}))),
        features(static_cast<int>(min(job.x_cols - feature, std::int64_t{kFeatures}))) {}
};

/// A thread's part of a tile: eight features, the lane's % 8, of four of its warp's sixteen tokens, of which
/// my_token() is the first and the others are kTokenStep apart. So a warp waits for no other before it turns
/// to columns.
constexpr int kTokenStep = 4;
__device__ __forceinline__ int my_token() {
  return static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 8;
}

/// What was in x stays where the matrix has ended: whole blocks, which nobody writes.
__device__ __forceinline__ void load_tile(const QuantizeJob& job, const Place& at, uint4 (&x)[4]) {
  const int token = my_token(), feature = threadIdx.x % 8 * 8;
  const bf16* p = static_cast<const bf16*>(job.x) + (at.token + token) * job.x_stride + at.feature + feature;
#pragma unroll
  for (int i = 0; i < 4; ++i, p += kTokenStep * job.x_stride) {
    if (feature < at.features && token + kTokenStep * i < at.tokens)
      x[i] = *reinterpret_cast<const uint4*>(p);
  }
}

/// The random bytes of a warp's 16 tokens x 64 features, two Philox blocks a lane.
__device__ __forceinline__ void draw(const QuantizeJob& job, const RandomKey& key, std::int64_t token,
                                     std::int64_t feature, uint4 (&random)[16][kFeatures / 16]) {
  const int k = threadIdx.x % kWarp / 4, quarter = threadIdx.x % 4;
  const std::uint64_t groups_a_row = static_cast<std::uint64_t>(job.row_elements) / 16;
  const std::uint64_t group = key.first_element / 16 + static_cast<std::uint64_t>(token + k) * groups_a_row +
                              static_cast<std::uint64_t>(feature) / 16 + static_cast<std::uint64_t>(quarter);
  random[k][quarter] = draw_sixteen(job.philox, key, group);
  random[k + 8][quarter] = draw_sixteen(job.philox, key, group + 8 * groups_a_row);
  __syncwarp();
}

/// The number in a half of a word with its sign flipped or not.
__device__ __forceinline__ float flipped_half(std::uint32_t word, int half, std::uint32_t flip) {
  return bits_float(half == 0 ? (word << 16) + flip : (word & 0xFFFF0000u) ^ flip);
}

/// Quantises one column of a warp's 16 tokens, given as packed words down both columns of a lane, into shared
/// memory: two chunks of values, or eight bytes of codes and the scale.
template <bool kStochastic, bool kCodes>
__device__ __forceinline__ void quantize_column(const QuantizeJob& job, const Tiles& tiles,
                                                const std::uint32_t (&word)[16], int half, Shared& s) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, column = 2 * lane + half;
  std::uint32_t packed[8];
  if (job.spec.rotation != 0) {
    float x[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) x[k] = flipped_half(word[k], half, tiles.flips[k]);
    butterflies16<true>(x);
#pragma unroll
    for (int k = 0; k < 8; ++k) packed[k] = pack_rounded(x[2 * k], x[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k)
      packed[k] = __byte_perm(word[2 * k], word[2 * k + 1], half == 0 ? 0x5410 : 0x7632);
  }
  std::uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) most = larger_halves(most, packed[k]);
  const std::uint32_t scale = s.table.of(most);
  const auto* random = reinterpret_cast<const std::uint8_t*>(s.random[warp]) + column;
  std::uint32_t bits[2][8] = {};
  if constexpr (kStochastic) {
#pragma unroll
    for (int k = 0; k < 16; ++k) bits[k / 8][k % 8] = std::uint32_t{random[k * kFeatures]} << 14;
  }
  if constexpr (kCodes) {
    std::uint32_t codes[2];
#pragma unroll
    for (int k = 0; k < 2; ++k)
      codes[k] = codes_of<kStochastic>(
          make_uint4(packed[4 * k], packed[4 * k + 1], packed[4 * k + 2], packed[4 * k + 3]), scale, s.table,
          bits[k]);
    reinterpret_cast<uint2*>(s.values)[column * kWarps + (warp ^ (lane & 7))] =
        make_uint2(codes[0], codes[1]);
    s.scales[column][warp] = static_cast<std::uint8_t>(scale);
  } else {
    std::uint32_t out[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      out[k] = operands_of<kStochastic>(packed[k], scale, s.table, bits[k / 4][2 * (k % 4)],
                                        bits[k / 4][2 * (k % 4) + 1]);
    s.values[column][(2 * warp) ^ (lane & 7)] = make_uint4(out[0], out[1], out[2], out[3]);
    s.values[column][(2 * warp + 1) ^ (lane & 7)] = make_uint4(out[4], out[5], out[6], out[7]);
  }
}

/// Shared memory to the result, whole 256-byte rows (codes: 64-byte ones).
template <bool kCodes>
__device__ __forceinline__ void store_tile(const QuantizeJob& job, const Place& at, const Shared& s) {
  constexpr int kChunks = kCodes ? kWarps : kTokens / 8;  // of a row
  constexpr int kStep = kThreads / kChunks;               // rows at a time: the swizzle repeats with it
  static_assert(kStep / 2 % 8 == 0);
  const int first = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks, place = chunk ^ (first / 2 & 7);
  if (chunk * (kTokens / kChunks) >= at.tokens) return;
  const std::int64_t row = at.feature + first, col = at.token + chunk * (kTokens / kChunks);
  bf16* values = job.values + row * job.values_stride + col;
  std::uint8_t* codes = job.codes + row * job.codes_stride + col / 2;
  std::uint8_t* scales = job.scales + row * job.scales_stride + col / 16;
#pragma unroll
  for (int r = 0; r < kFeatures; r += kStep) {
    if (first + r >= at.features) break;
    if constexpr (kCodes) {
      *reinterpret_cast<uint2*>(codes + r * job.codes_stride) =
          reinterpret_cast<const uint2*>(s.values)[(first + r) * kWarps + place];
      scales[r * job.scales_stride] = s.scales[first + r][chunk];
    } else {
      *reinterpret_cast<uint4*>(values + r * job.values_stride) = s.values[first + r][place];
    }
  }
}

/// A block loops over tiles; the next tile's numbers are on their way while this one's columns are made.
/// Floor, BF16 [16384, 8192], values: read 268 MB and write 268 MB for the transposed copy = 128 us at
/// 4.2 TB/s, 805 MB = 192 us for both copies; codes and scales: 344 MB = 82 us and 419 MB = 100 us. Both
/// copies take 33 instructions an element if both round to nearest even, 38 if the transposed one is
/// stochastic and 44 if both are (codes: 34, 40 and 46), for which the issue slots alone need 149, 172 and
/// 199 us at 1.76 GHz.
template <RowCopy kRows, bool kStochastic, bool kCodes>
__global__ void __launch_bounds__(kThreads, kBlocks)
    tiles_kernel(QuantizeJob rows, QuantizeJob job, Tiles tiles) {
  __shared__ Shared s;
  if constexpr (kRows != RowCopy::None) s.row_table.fill(TensorScale::from_amax(begin(rows)));
  s.table.fill(TensorScale::from_amax(begin(job)));
  __syncthreads();
  const RandomKey row_key = rows.random.resolved(), key = job.random.resolved();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int token = my_token(), chunk = threadIdx.x % 8;

  uint4 x[4] = {};
  Walk walk(tiles);  // its first tile exists
  Place at(job, walk);
  load_tile(job, at, x);
  for (bool more = true; more;) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s.x[token + kTokenStep * i][chunk] = x[i];
    if constexpr (kRows != RowCopy::None) {
      quantize_chunks<kRows == RowCopy::Stochastic, kCodes, kTokenStep>(
          rows, s.row_table, row_key, at.token + token, at.feature + chunk * 8, x, at.tokens - token,
          chunk * 8 < at.features);
    }
    const Place here = at;
    more = walk.next(tiles);
    if (more) {
      at = Place(job, walk);
      load_tile(job, at, x);
    }
    if constexpr (kStochastic) draw(job, key, here.token + 16 * warp, here.feature, s.random[warp]);
    __syncwarp();
    std::uint32_t word[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) word[k] = reinterpret_cast<const std::uint32_t*>(s.x[16 * warp + k])[lane];
    __syncthreads();  // the last tile's values are out
#pragma unroll
    for (int half = 0; half < 2; ++half) quantize_column<kStochastic, kCodes>(job, tiles, word, half, s);
    __syncthreads();
    store_tile<kCodes>(job, here, s);
  }
}

std::int64_t count_of(const QuantizeJob& job) {
  return (job.x_rows + kTokens - 1) / kTokens * ((job.x_cols + kFeatures - 1) / kFeatures);
}
Tiles tiles_of(const QuantizeJob& job) {
  Tiles tiles{.across = static_cast<std::uint32_t>((job.x_cols + kFeatures - 1) / kFeatures),
              .count = static_cast<std::uint32_t>(count_of(job)),
              .flips = {}};
  for (int k = 0; k < 16; ++k) tiles.flips[k] = (job.spec.sign_mask >> k & 1u) << 31;
  return tiles;
}

template <RowCopy kRows>
void launch_tiles(Stream& stream, const QuantizeJob& rows, const QuantizeJob& job) {
  const Tiles tiles = tiles_of(job);
  with_variant(job, [&](auto stochastic, auto codes) {
    launch(stream, "quantize", tiles_kernel<kRows, stochastic.value, codes.value>,
           looping_blocks(stream, tiles.count, 1, kBlocks), kThreads, 0, rows, job, tiles);
  });
}

}  // namespace

bool tiles_fit(const QuantizeJob& job) {
  return is_fast_nvfp4(job) && job.transpose && job.spec.tile == Tile::Row && job.x_rows % 16 == 0 &&
         count_of(job) < (std::int64_t{1} << 30) &&
         packs_fit<8>(static_cast<const std::uint8_t*>(job.codes), job.codes_stride);
}

bool pair_fits(const QuantizeJob& rows, const QuantizeJob& transposed) {
  return tiles_fit(transposed) && rows_fit(rows) && rows.writes() && transposed.writes() &&
         (rows.codes != nullptr) == (transposed.codes != nullptr);
}

void quantize_tiles(Stream& stream, const QuantizeJob* rows, const QuantizeJob& job) {
  if (rows == nullptr) return launch_tiles<RowCopy::None>(stream, job, job);
  if (rows->spec.rounding == Rounding::Stochastic)
    return launch_tiles<RowCopy::Stochastic>(stream, *rows, job);
  launch_tiles<RowCopy::Nearest>(stream, *rows, job);
}

}  // namespace nibble::cuda
