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
///   x           with the rotation's signs; written in rows, read in words down the columns, a warp a row
///   values      row = feature. A lane writes its two columns' 32 bytes, lanes two rows apart: chunk c of row
///   r
///               lies at c ^ (r / 2 % 8). Read a row by sixteen lanes
///   random      of each warp: sixteen bytes for each 16 features of a token, as Philox makes them
struct Shared {
  uint4 x[kTokens][kFeatures / 8];
  uint4 values[kFeatures][kTokens / 8];
  uint4 random[kWarps][16][kFeatures / 16];
  ScaleTable row_table, table;
  std::uint8_t scales[kFeatures][kWarps];
};
static_assert(sizeof(Shared) <= 48 * 1024);

struct TileShape {
  std::uint32_t across, count;
};

/// Where a tile begins in x, and how much of it is in the matrix.
struct Place {
  std::int64_t token, feature;
  int tokens, features;

  __device__ __forceinline__ Place(const QuantizeJob& job, const TileShape& tiles, std::uint32_t tile)
      : token(std::int64_t{tile / tiles.across} * kTokens),
        feature(std::int64_t{tile % tiles.across} * kFeatures),
        tokens(static_cast<int>(min(job.x_rows - token, std::int64_t{kTokens}))),
        features(static_cast<int>(min(job.x_cols - feature, std::int64_t{kFeatures}))) {}
};

/// A thread's part of a tile: the eight features tid % 8 of the tokens tid / 8 + 32 i. Zeros beyond the
/// matrix.
__device__ __forceinline__ void load_tile(const QuantizeJob& job, const Place& at, uint4 (&x)[4]) {
  const int token = threadIdx.x / 8, feature = threadIdx.x % 8 * 8;
  const bf16* p = static_cast<const bf16*>(job.x) + (at.token + token) * job.x_stride + at.feature + feature;
#pragma unroll
  for (int i = 0; i < 4; ++i, p += 32 * job.x_stride) {
    x[i] = make_uint4(0, 0, 0, 0);
    if (feature < at.features && token + 32 * i < at.tokens) x[i] = *reinterpret_cast<const uint4*>(p);
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

/// Quantises one column of a warp's 16 tokens, given as packed words down both columns of a lane, into shared
/// memory: two chunks of values, or eight bytes of codes and the scale.
template <bool kStochastic, bool kCodes>
__device__ __forceinline__ void quantize_column(const QuantizeJob& job, const std::uint32_t (&word)[16],
                                                int half, Shared& s) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, column = 2 * lane + half;
  std::uint32_t packed[8];
  if (job.spec.rotation != 0) {
    float x[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) x[k] = half_value(word[k], half);
    butterflies16(x);
#pragma unroll
    for (int k = 0; k < 8; ++k) packed[k] = pack_rounded(x[2 * k] * 0.25f, x[2 * k + 1] * 0.25f);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k)
      packed[k] = __byte_perm(word[2 * k], word[2 * k + 1], half == 0 ? 0x5410 : 0x7632);
  }
  std::uint32_t size[8], most = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    size[k] = magnitudes(packed[k]);
    most = max_halves(most, size[k]);
  }
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
          make_uint4(packed[4 * k], packed[4 * k + 1], packed[4 * k + 2], packed[4 * k + 3]),
          make_uint4(size[4 * k], size[4 * k + 1], size[4 * k + 2], size[4 * k + 3]), scale, s.table,
          bits[k]);
    reinterpret_cast<uint2*>(s.values)[column * kWarps + (warp ^ (lane & 7))] =
        make_uint2(codes[0], codes[1]);
    s.scales[column][warp] = static_cast<std::uint8_t>(scale);
  } else {
    std::uint32_t out[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
      out[k] = operands_of<kStochastic>(size[k], packed[k], scale, s.table, bits[k / 4][2 * (k % 4)],
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
/// copies take 37 instructions an element, 168 us, if both round to nearest even, 45 (codes) if the
/// transposed one is stochastic and 52 if both are.
template <RowCopy kRows, bool kStochastic, bool kCodes>
__global__ void __launch_bounds__(kThreads, kBlocks)
    tiles_kernel(QuantizeJob rows, QuantizeJob job, TileShape tiles) {
  __shared__ Shared s;
  if constexpr (kRows != RowCopy::None) s.row_table.fill(TensorScale::from_amax(begin(rows)));
  s.table.fill(TensorScale::from_amax(begin(job)));
  __syncthreads();
  const RandomKey row_key = rows.random.resolved(), key = job.random.resolved();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int my_token = threadIdx.x / 8, my_chunk = threadIdx.x % 8;

  // A thread's tokens have one place in their blocks of 16, hence one sign.
  const bool negative = job.spec.rotation != 0 && (job.spec.sign_mask >> (my_token % 16) & 1) != 0;
  const std::uint32_t flip = negative ? kSigns : 0u;

  uint4 x[4];
  Place at(job, tiles, blockIdx.x);
  load_tile(job, at, x);
  for (std::uint32_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s.x[my_token + 32 * i][my_chunk] =
          make_uint4(x[i].x ^ flip, x[i].y ^ flip, x[i].z ^ flip, x[i].w ^ flip);
    if constexpr (kRows != RowCopy::None) {
      quantize_chunks<kRows == RowCopy::Stochastic, kCodes, 32>(
          rows, s.row_table, row_key, at.token + my_token, at.feature + my_chunk * 8, x, at.tokens - my_token,
          my_chunk * 8 < at.features);
    }
    const Place here = at;
    if (tile + gridDim.x < tiles.count) {
      at = Place(job, tiles, tile + gridDim.x);
      load_tile(job, at, x);
    }
    if constexpr (kStochastic) draw(job, key, here.token + 16 * warp, here.feature, s.random[warp]);
    __syncthreads();  // x is there, and the last tile's values are out
    std::uint32_t word[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) word[k] = reinterpret_cast<const std::uint32_t*>(s.x[16 * warp + k])[lane];
#pragma unroll
    for (int half = 0; half < 2; ++half) quantize_column<kStochastic, kCodes>(job, word, half, s);
    __syncthreads();
    store_tile<kCodes>(job, here, s);
  }
}

std::int64_t count_of(const QuantizeJob& job) {
  return (job.x_rows + kTokens - 1) / kTokens * ((job.x_cols + kFeatures - 1) / kFeatures);
}
TileShape shape_of(const QuantizeJob& job) {
  return {static_cast<std::uint32_t>((job.x_cols + kFeatures - 1) / kFeatures),
          static_cast<std::uint32_t>(count_of(job))};
}

template <RowCopy kRows>
void launch_tiles(Stream& stream, const QuantizeJob& rows, const QuantizeJob& job) {
  const TileShape tiles = shape_of(job);
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
