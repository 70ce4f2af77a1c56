// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "ops/quantize/quantize_chunks_cuda.cuh"
#include "quant/mxfp8.h"

/// FP8 with one scale a tensor, of an aligned BF16 matrix: its rows, its transpose, or both in one pass. The
/// amax is known when these start. And the codes of MXFP8's rows, which need no amax but their blocks'.
namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
/// Blocks on a processor at once; a row kernel's thread has four loads on their way, one of a tile eight.
constexpr int kRowBlocks = 4, kTileBlocks = 3;
/// A tile of x has 128 features: 256-byte runs of x, 128-byte ones of the rows' codes. Its transposed rows
/// are 128 bytes long.
constexpr int kFeatures = 128, kRowBytes = 128;
constexpr int kGroup = 4;  ///< tokens side by side that a thread takes

/// Where there is no copy of the rows.
struct NoCopy {};

/// fl(x encode), then Element::nearest, of four numbers, the first in the lowest byte. The conversion rounds
/// to nearest even, keeps the sign of zeros and saturates infinities, as nearest does. It is not asked for
/// the code of a NaN: under NonFinite::Detect that is unspecified.
template <class Element>
__device__ __forceinline__ std::uint32_t four_codes(float a, float b, float c, float d, float encode) {
  a *= encode;
  b *= encode;
  c *= encode;
  d *= encode;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890  // no FP8 conversions before Ada
  return Element::nearest(a).bits | static_cast<std::uint32_t>(Element::nearest(b).bits) << 8 |
         static_cast<std::uint32_t>(Element::nearest(c).bits) << 16 |
         static_cast<std::uint32_t>(Element::nearest(d).bits) << 24;
#else
  std::uint32_t word;
  if constexpr (std::is_same_v<Element, E4M3>) {
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\t"
        "mov.b32 %0, {low, high};\n\t"
        "}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  } else {
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n\t"
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n\t"
        "mov.b32 %0, {low, high};\n\t"
        "}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  }
  return word;
#endif
}

/// Two FP16 numbers as BF16, which must be exact.
__device__ __forceinline__ std::uint32_t bf16_of_halves(std::uint32_t pair) {
  float low, high;
  asm("{\n\t"
      ".reg .b16 a, b;\n\t"
      "mov.b32 {a, b}, %2;\n\t"
      "cvt.f32.f16 %0, a;\n\t"
      "cvt.f32.f16 %1, b;\n\t"
      "}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
  return pack_exact(low, high);
}

/// exact_operand of four codes. FP16 holds every number of both formats.
template <class Element>
__device__ __forceinline__ uint2 four_values(std::uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  const auto value = [codes](int i) {
    return exact_operand(Element{static_cast<std::uint8_t>(codes >> (8 * i))}).value();
  };
  return make_uint2(pack_exact(value(0), value(1)), pack_exact(value(2), value(3)));
#else
  std::uint32_t low, high;
  if constexpr (std::is_same_v<Element, E4M3>) {
    asm("{\n\t"
        ".reg .b16 a, b;\n\t"
        "mov.b32 {a, b}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n\t"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
  } else {
    // E5M2 is the upper byte of FP16.
    low = __byte_perm(codes, 0, 0x1404);
    high = __byte_perm(codes, 0, 0x3424);
  }
  return make_uint2(bf16_of_halves(low), bf16_of_halves(high));
#endif
}

template <class Element>
__device__ __forceinline__ float encode_scale(const QuantizeJob& job) {
  return Fp8Scale::from_amax<Element>(begin(job), kBf16Max).encode;
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& x, int j) {
  return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
}

/// Codes eight numbers of a row and writes them at (row, col) of the result.
template <class Element, bool kCodes>
__device__ __forceinline__ void put_row(const QuantizeJob& job, std::int64_t row, std::int64_t col,
                                        const uint4& x, float encode) {
  const std::uint32_t low = four_codes<Element>(half_value(x.x, 0), half_value(x.x, 1), half_value(x.y, 0),
                                                half_value(x.y, 1), encode);
  const std::uint32_t high = four_codes<Element>(half_value(x.z, 0), half_value(x.z, 1), half_value(x.w, 0),
                                                 half_value(x.w, 1), encode);
  if constexpr (kCodes) {
    const std::uint32_t words[2] = {low, high};
    store_words(job.codes + row * job.codes_stride + col, words);
  } else {
    const uint2 first = four_values<Element>(low), second = four_values<Element>(high);
    const std::uint32_t words[4] = {first.x, first.y, second.x, second.y};
    store_words(job.values + row * job.values_stride + col, words);
  }
}

/// A thread takes an item at a time.
/// Floor, BF16 [16384, 8192]: 268 MB read, 134 MB of codes written = 96 us at 4.2 TB/s; values: 128 us. It
/// has some five instructions an element, of the 21 that this time leaves room for.
template <class Element, bool kCodes>
__global__ void __launch_bounds__(kThreads, kRowBlocks) fp8_rows_kernel(QuantizeJob job) {
  const float encode = encode_scale<Element>(job);
  const RowItems items(job);
  for (std::uint32_t w = blockIdx.x * kThreads + threadIdx.x; w < items.count; w += gridDim.x * kThreads) {
    const FourChunks at(job, items, w);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < at.rows_left) put_row<Element, kCodes>(job, at.row + i, at.col, at.x[i], encode);
  }
}

/// MXFP8: as above, with a scale for the chunks of four lanes.
/// Floor, BF16 [16384, 8192]: 407 MB = 97 us at 4.2 TB/s; 12 instructions an element, 7 of them at half rate,
/// are 62 us.
template <class Element>
__global__ void __launch_bounds__(kThreads, kRowBlocks) mxfp8_rows_kernel(QuantizeJob job) {
  begin(job);
  const RowItems items(job);
  for (std::uint32_t first = blockIdx.x * kThreads; first < items.count; first += gridDim.x * kThreads) {
    // Lanes beyond the end stay for the exchange within their warp, with another's numbers.
    const bool present = first + threadIdx.x < items.count;
    const FourChunks at(job, items, present ? first + threadIdx.x : items.count - 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float most = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(half_value(word_of(at.x[i], j / 2), j % 2)));
      for (int other : {1, 2}) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, other));
      const E8M0 scale = mxfp8_scale<Element>(most);
      if (!present || i >= at.rows_left) continue;
      put_row<Element, true>(job, at.row + i, at.col, at.x[i], scale.inverse());
      if (at.col % 32 == 0) job.scales[(at.row + i) * job.scales_stride + at.col / 32] = scale.bits;
    }
  }
}

template <bool kCodes>
constexpr int kTokens = kCodes ? kRowBytes : kRowBytes / 2;  ///< of x in a tile
/// How often a block's threads, sixteen of them across the features, go down the tokens of a tile.
template <bool kCodes>
constexpr int kPasses = kTokens<kCodes> / (kThreads / 16 * kGroup);

struct TileShape {
  std::uint32_t across, count;
};

/// Where a tile begins in x, and how much of it is in the matrix.
template <bool kCodes>
struct Place {
  int token, feature, tokens, features;

  __device__ __forceinline__ Place(const QuantizeJob& job, const TileShape& tiles, std::uint32_t tile)
      : token(static_cast<int>(tile / tiles.across) * kTokens<kCodes>),
        feature(static_cast<int>(tile % tiles.across) * kFeatures),
        tokens(min(static_cast<int>(job.x_rows) - token, kTokens<kCodes>)),
        features(min(static_cast<int>(job.x_cols) - feature, kFeatures)) {}
};

/// A thread's place in a tile: eight features from 8 chunk, four tokens a pass.
struct Mine {
  int chunk = static_cast<int>(threadIdx.x % 16);
  int group = static_cast<int>(threadIdx.x / 16);
  __device__ __forceinline__ int token(int pass) const { return (pass * (kThreads / 16) + group) * kGroup; }
  template <bool kCodes>
  __device__ __forceinline__ bool present(const Place<kCodes>& at, int pass) const {
    return chunk * 8 < at.features && token(pass) < at.tokens;
  }
};

template <bool kCodes>
__device__ __forceinline__ void load_tile(const QuantizeJob& job, const Place<kCodes>& at, const Mine& mine,
                                          uint4 (&x)[kPasses<kCodes>][kGroup]) {
#pragma unroll
  for (int p = 0; p < kPasses<kCodes>; ++p) {
    const bf16* from = static_cast<const bf16*>(job.x) +
                       std::int64_t{at.token + mine.token(p)} * job.x_stride + at.feature + mine.chunk * 8;
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
      x[p][t] = make_uint4(0, 0, 0, 0);
      if (mine.present(at, p)) x[p][t] = *reinterpret_cast<const uint4*>(from + t * job.x_stride);
    }
  }
}

/// The transposed tile in shared memory, a row of sixteen slots for each feature. Slot s of row r lies at
/// s ^ (r / 8): the lanes of a warp write one or two slots of the rows 8 chunk + f, and eight lanes read a
/// row, without a conflict of banks.
using TransposedTile = uint2[kFeatures][kRowBytes / 8];

/// Codes a thread's features, each over its four tokens.
template <class Element, bool kCodes>
__device__ __forceinline__ void put_columns(const uint4 (&x)[kGroup], float encode, int chunk, int token,
                                            TransposedTile& tile) {
#pragma unroll
  for (int f = 0; f < 8; ++f) {
    float v[kGroup];
#pragma unroll
    for (int t = 0; t < kGroup; ++t) v[t] = half_value(word_of(x[t], f / 2), f % 2);
    const std::uint32_t codes = four_codes<Element>(v[0], v[1], v[2], v[3], encode);
    uint2* row = tile[8 * chunk + f];
    if constexpr (kCodes)
      reinterpret_cast<std::uint32_t*>(row)[2 * (token / 8 ^ chunk) + token / 4 % 2] = codes;
    else
      row[token / 4 ^ chunk] = four_values<Element>(codes);
  }
}

/// Shared memory to the result, 128-byte rows in stores of 16 bytes.
template <bool kCodes>
__device__ __forceinline__ void store_tile(const QuantizeJob& job, const Place<kCodes>& at,
                                           const TransposedTile& tile) {
  constexpr int kChunks = kRowBytes / 16, kChunk = kTokens<kCodes> / kChunks;  // chunks a row, tokens a chunk
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  if (chunk * kChunk >= at.tokens) return;
  const int col = at.token + chunk * kChunk;
#pragma unroll
  for (int r = 0; r < kFeatures; r += kThreads / kChunks) {
    const int row = first + r, place = row / 8;
    if (row >= at.features) break;
    uint4 v = reinterpret_cast<const uint4*>(tile[row])[chunk ^ (place / 2)];
    if (place % 2 != 0) v = make_uint4(v.z, v.w, v.x, v.y);
    if constexpr (kCodes)
      *reinterpret_cast<uint4*>(job.codes + std::int64_t{at.feature + row} * job.codes_stride + col) = v;
    else
      *reinterpret_cast<uint4*>(job.values + std::int64_t{at.feature + row} * job.values_stride + col) = v;
  }
}

/// A block loops over tiles; the next tile's numbers are on their way while this one is stored. Two tiles in
/// shared memory by turns: a thread that comes to write one has passed the barrier after which the other was
/// read, hence all have stored what was in this one.
/// Floor, BF16 [16384, 8192], codes: 268 MB read, 134 MB written = 96 us at 4.2 TB/s; of both copies 537 MB =
/// 128 us; values: 128 and 192 us.
template <class Row, class Element, bool kCodes>
__global__ void __launch_bounds__(kThreads, kTileBlocks)
    fp8_tiles_kernel(QuantizeJob rows, QuantizeJob job, TileShape tiles) {
  alignas(16) __shared__ TransposedTile shared[2];
  [[maybe_unused]] float row_encode = 1;
  if constexpr (!std::is_same_v<Row, NoCopy>) row_encode = encode_scale<Row>(rows);
  const float encode = encode_scale<Element>(job);
  const Mine mine;
  uint4 x[kPasses<kCodes>][kGroup];
  Place<kCodes> at(job, tiles, blockIdx.x);
  load_tile(job, at, mine, x);
  int turn = 0;
  for (std::uint32_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn ^= 1) {
#pragma unroll
    for (int p = 0; p < kPasses<kCodes>; ++p) {
      if constexpr (!std::is_same_v<Row, NoCopy>) {
        if (mine.present(at, p)) {
#pragma unroll
          for (int t = 0; t < kGroup; ++t)
            put_row<Row, kCodes>(rows, at.token + mine.token(p) + t, at.feature + mine.chunk * 8, x[p][t],
                                 row_encode);
        }
      }
      put_columns<Element, kCodes>(x[p], encode, mine.chunk, mine.token(p), shared[turn]);
    }
    const Place<kCodes> here = at;
    if (tile + gridDim.x < tiles.count) {
      at = Place<kCodes>(job, tiles, tile + gridDim.x);
      load_tile(job, at, mine, x);
    }
    __syncthreads();
    store_tile<kCodes>(job, here, shared[turn]);
  }
}

std::int64_t tiles_across(const QuantizeJob& job) { return (job.x_cols + kFeatures - 1) / kFeatures; }
template <bool kCodes>
std::int64_t tiles_of(const QuantizeJob& job) {
  return (job.x_rows + kTokens<kCodes> - 1) / kTokens<kCodes> * tiles_across(job);
}

/// Calls f(Element{}) with the job's format.
template <class F>
void with_element(const QuantizeJob& job, F&& f) {
  if (job.spec.format == Format::Fp8E4M3 || job.spec.format == Format::Mxfp8E4M3)
    f(E4M3{});
  else
    f(E5M2{});
}
/// Calls f(std::bool_constant codes).
template <class F>
void with_output(const QuantizeJob& job, F&& f) {
  if (job.codes != nullptr)
    f(std::true_type{});
  else
    f(std::false_type{});
}

template <class Row>
void launch_tiles(Stream& stream, const QuantizeJob& rows, const QuantizeJob& job) {
  with_element(job, [&](auto element) {
    with_output(job, [&](auto codes) {
      const std::int64_t count = tiles_of<codes.value>(job);
      const TileShape tiles{static_cast<std::uint32_t>(tiles_across(job)), static_cast<std::uint32_t>(count)};
      launch(stream, "quantize", fp8_tiles_kernel<Row, decltype(element), codes.value>,
             looping_blocks(stream, count, 1, kTileBlocks), kThreads, 0, rows, job, tiles);
    });
  });
}

/// Nearest even, aligned rows, values or codes alone.
bool is_plain(const QuantizeJob& job) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const QuantSpec& s = job.spec;
  const bool plain = is_common(s) && s.tile == Tile::Row && s.rounding == Rounding::NearestEven &&
                     s.rotation == 0 && s.non_finite == NonFinite::Detect;
  const bool one_output = (job.values == nullptr) != (job.codes == nullptr);
  const bool wide = job.wide_x && (job.codes != nullptr ? job.wide_codes : job.wide_values);
  return plain && one_output && wide && job.writes() && row_items(job) < kMost && job.x_rows < kMost &&
         job.x_cols < kMost;
}

}  // namespace

bool fp8_fits(const QuantizeJob& job) {
  const bool fp8 = job.spec.format == Format::Fp8E4M3 || job.spec.format == Format::Fp8E5M2;
  return fp8 && is_plain(job) && job.x_cols % 8 == 0 && (!job.transpose || job.x_rows % 16 == 0);
}

bool mxfp8_fits(const QuantizeJob& job) {
  const bool mxfp8 = job.spec.format == Format::Mxfp8E4M3 || job.spec.format == Format::Mxfp8E5M2;
  return mxfp8 && is_plain(job) && job.codes != nullptr && job.x_cols % 32 == 0 && !job.transpose;
}

bool fp8_pair_fits(const QuantizeJob& rows, const QuantizeJob& transposed) {
  return fp8_fits(rows) && fp8_fits(transposed) && (rows.codes != nullptr) == (transposed.codes != nullptr);
}

void quantize_fp8(Stream& stream, const QuantizeJob& job) {
  if (job.transpose) return launch_tiles<NoCopy>(stream, job, job);
  with_element(job, [&](auto element) {
    with_output(job, [&](auto codes) {
      launch(stream, "quantize", fp8_rows_kernel<decltype(element), codes.value>,
             looping_blocks(stream, row_items(job), kThreads, kRowBlocks), kThreads, 0, job);
    });
  });
}

void quantize_mxfp8(Stream& stream, const QuantizeJob& job) {
  with_element(job, [&](auto element) {
    launch(stream, "quantize", mxfp8_rows_kernel<decltype(element)>,
           looping_blocks(stream, row_items(job), kThreads, kRowBlocks), kThreads, 0, job);
  });
}

void quantize_fp8_pair(Stream& stream, const QuantizeJob& rows, const QuantizeJob& transposed) {
  with_element(rows, [&](auto row) { launch_tiles<decltype(row)>(stream, rows, transposed); });
}

}  // namespace nibble::cuda
