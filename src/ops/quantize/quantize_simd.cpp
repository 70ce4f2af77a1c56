// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_lanes.h"
#include "quant/eden.h"
#include "quant/hadamard.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/operand.h"

/// Every format and option, by tiles of 16 result rows: lane l of vector k is element k of row l's block. A
/// transposed copy reads its source in that arrangement already, the Hadamard butterflies and the block
/// maxima need no shuffles, and only the finished tile is transposed.
namespace nibble::cpu::NIBBLE_SIMD {
namespace {

/// Where a tile lies in the result.
struct Place {
  std::int64_t row, col;
  int lanes;              ///< rows that exist, up to 16
  const RoundKeys* keys;  ///< of the job's random key; null where nothing is drawn
};

template <int N>
struct Output {
  H16 values[N];
  B16 codes[N];  ///< one code a byte, four-bit ones too
  std::uint8_t scales[16];
};

NIBBLE_LANES F16 load_lanes(const QuantizeJob& job, std::int64_t row, std::int64_t col, int lanes) {
  const std::int64_t at = row * job.x_stride + col;
  if (job.x_is_f32) {
    const auto* x = static_cast<const float*>(job.x) + at;
    if (lanes == 16) return load<F16>(x);
    F16 v{};
    __builtin_memcpy(&v, x, static_cast<std::size_t>(lanes) * 4);
    return v;
  }
  const auto* x = static_cast<const std::uint16_t*>(job.x) + at;
  if (lanes == 16) return widen(load<H16>(x));
  H16 v{};
  __builtin_memcpy(&v, x, static_cast<std::size_t>(lanes) * 2);
  return widen(v);
}

/// Element k of 16 rows of the source, for a result that is not transposed.
template <int N>
NIBBLE_LANES void gather_rows(const QuantizeJob& job, const Place& at, int filled, F16 (&x)[N]) {
  alignas(64) float staged[N][16] = {};
  for (int l = 0; l < at.lanes; ++l) {
    const std::int64_t from = (at.row + l) * job.x_stride + at.col;
    if (job.x_is_f32) {
      const auto* source = static_cast<const float*>(job.x) + from;
      for (int k = 0; k < filled; ++k) staged[k][l] = source[k];
    } else {
      const auto* source = static_cast<const bf16*>(job.x) + from;
      for (int k = 0; k < filled; ++k) staged[k][l] = source[k].value();
    }
  }
  for (int k = 0; k < N; ++k) x[k] = load<F16>(staged[k]);
}

template <int N>
NIBBLE_LANES void load_tile(const QuantizeJob& job, const Place& at, F16 (&x)[N]) {
  const std::int64_t left = (job.transpose ? job.x_rows : job.x_cols) - at.col;
  const int filled = left < N ? static_cast<int>(left) : N;
  if (!job.transpose) {
    gather_rows(job, at, filled, x);
  } else if (filled == N && at.lanes == 16 && !job.x_is_f32) {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(job.x) + at.col * job.x_stride + at.row;
    for (int k = 0; k < N; ++k) x[k] = widen(load<H16>(from + k * job.x_stride));
  } else {
    for (int k = 0; k < N; ++k) x[k] = k < filled ? load_lanes(job, at.col + k, at.row, at.lanes) : F16{};
  }
  if (job.spec.rotation == 0) return;
  for (int h = 0; h < N; h += 16) {
    auto& part = *reinterpret_cast<F16(*)[16]>(x + h);
    hadamard16(part, job.spec.sign_mask);
    for (int k = 0; k < 16; ++k) part[k] = rounded_to_bf16(part[k]);
  }
}

template <int N>
NIBBLE_LANES U16 block_amax(const QuantizeJob& job, const F16 (&x)[N]) {
  U16 amax{};
  const bool drop_nan = job.spec.non_finite == NonFinite::AsTe;
  for (int k = 0; k < N; ++k) {
    const U16 a = magnitude_of(x[k]);
    amax = max_of(amax, drop_nan ? without_nan(a) : a);
  }
  if (job.spec.tile == Tile::Row) return amax;
  std::uint32_t largest = 0;
  for (int l = 0; l < 16; ++l) largest = amax[l] > largest ? amax[l] : largest;
  return U16{} + largest;
}

/// The random numbers of a tile: random[k][l] for element k of row l.
template <class Round, int N>
NIBBLE_LANES void draw(const QuantizeJob& job, const Place& at, std::uint32_t (&random)[N][16]) {
  const auto row = static_cast<std::uint64_t>(job.row_elements);
  if (Round::kRounding == Rounding::Stochastic && job.transpose && row % 16 == 0 &&
      job.random.first_element % 16 == 0) {
    for (int h = 0; h < N; h += 16) {
      alignas(64) std::uint8_t bytes[256];
      const std::uint64_t first = job.random.first_element + static_cast<std::uint64_t>(at.col + h) * row +
                                  static_cast<std::uint64_t>(at.row);
      random_groups(job.random, *at.keys, first / 16, row / 16, bytes);
      for (int k = 0; k < 16; ++k) store(random[h + k], widen_bytes(bytes + 16 * k));
    }
    return;
  }
  for (int k = 0; k < N; ++k) {
    for (int l = 0; l < 16; ++l) {
      const auto i = static_cast<std::uint64_t>(at.row + l), j = static_cast<std::uint64_t>(at.col + k);
      const std::uint64_t element = job.transpose ? j * row + i : i * row + j;
      random[k][l] = Round::kRounding == Rounding::Stochastic ? random_byte(job.random, element)
                                                              : random_bits24(job.random, element);
    }
  }
}

/// E2M1 codes under scales that are known. kExact: BF16 holds every product of a code and a scale.
template <class Round, bool kSeesNan, bool kExact, int N>
NIBBLE_LANES void encode_e2m1(const QuantizeJob& job, const Place& at, const F16 (&x)[N],
                              const BlockScales& scales, Output<N>& out) {
  alignas(64) std::uint32_t random[N][16];
  if constexpr (Round::kRounding != Rounding::NearestEven) draw<Round, N>(job, at, random);
  for (int k = 0; k < N; ++k) {
    const F16 v = x[k] * scales.multiplier;
    U16 r{};
    if constexpr (Round::kRounding != Rounding::NearestEven) r = load<U16>(random[k]);
    const F16 q = Round::round(saturated_e2m1(v), r);
    const U16 sign = code_sign<kSeesNan>(v);
    const F16 value = as_float(as_bits(q * scales.scale) | sign);
    out.values[k] = narrow_exact(kExact ? value : rounded_to_bf16(value));
    if (job.codes != nullptr) out.codes[k] = narrow_bytes(e2m1_code(q, sign));
  }
  store(out.scales, scales.bytes);
}

/// How a format turns a tile into its output.
template <class Round, bool kSeesNan>
struct Nvfp4Tile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place& at, const F16 (&x)[16], Output<16>& out) {
    encode_e2m1<Round, kSeesNan, true>(job, at, x, nvfp4_scales(block_amax(job, x), job), out);
  }
};

/// E4M3 scales of sixteen blocks and what they multiply by, from scales that are not rounded yet.
NIBBLE_LANES BlockScales rounded_scales(const F16& unrounded, const TensorScale& g) {
  const U16 code =
      min_of(small_nearest<E4M3::Bits>(as_bits(min_or_limit(unrounded, kFloatMax))), U16{} + E4M3::kMaxBits);
  const F16 scale = small_value<E4M3::Bits>(code);
  return {min_or_limit(1.0f / (scale * g.decode), kFloatMax), scale, narrow_bytes(code)};
}

/// The decoded values' signed codes under one scale, to nearest.
NIBBLE_LANES F16 nearest_code(const F16& v) {
  const F16 q = NearestLanes::round(saturated_e2m1(v), U16{});
  return as_float(as_bits(q) | code_sign<true>(v));
}

/// Four over six of rows, rounded to nearest: quant/four_over_six.h in every lane.
struct FourOverSixTile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static F16 error(const QuantizeJob& job, const F16 (&x)[16], const BlockScales& s) {
    const float range = range_of(job.spec.scale_bound);
    F16 sum{};
    for (int k = 0; k < 16; ++k) {
      const F16 d = ((nearest_code(x[k] * s.multiplier) * s.scale) * job.nvfp4.amax) / range - x[k];
      sum = sum + (job.spec.four_over_six == FourOverSix::Mae ? as_float(magnitude_of(d)) : d * d);
    }
    return sum;
  }
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place& at, const F16 (&x)[16], Output<16>& out) {
    const F16 base = (as_float(block_amax(job, x)) / 6.0f) * job.nvfp4.encode;
    const BlockScales six = rounded_scales(base, job.nvfp4), four = rounded_scales(base * 1.5f, job.nvfp4);
    const auto takes_four = error(job, x, four) < error(job, x, six);
    const F16 scale = takes_four ? four.scale : six.scale;
    const BlockScales chosen{takes_four ? four.multiplier : six.multiplier, scale,
                             narrow_bytes(takes_four ? widen_bytes(&four.bytes) : widen_bytes(&six.bytes))};
    encode_e2m1<NearestLanes, true, true>(job, at, x, chosen, out);
  }
};

template <class Round>
struct Mxfp4Tile {
  static constexpr int kBlock = 32;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place& at, const F16 (&x)[32], Output<32>& out) {
    const U16 amax = block_amax(job, x);
    const bool floored = job.spec.scale_rule == MxScaleRule::ThreeQuarters;
    const BlockScales scales = floored ? three_quarter_scales(amax) : mx_scales(amax, 1.0f / 6.0f);
    encode_e2m1<Round, true, false>(job, at, x, scales, out);
  }
};

/// Element::nearest and the operand of its code, for one vector.
template <class Element, int N>
NIBBLE_LANES void encode_8_bit(const F16& v, const F16& scale, int k, Output<N>& out) {
  const U16 magnitude = magnitude_of(v), sign = as_bits(v) & 0x80000000u;
  const U16 code = min_of(small_nearest<typename Element::Bits>(magnitude), U16{} + Element::kMaxBits);
  const F16 value = as_float(as_bits(small_value<typename Element::Bits>(code) * scale) | sign);
  const auto nan = magnitude > kInfinityBits;
  out.codes[k] = narrow_bytes(nan ? U16{} + Element::kNanBits : code | sign >> 24);
  out.values[k] = narrow_exact(nan ? all(bits_float(0x7FC00000u)) : rounded_to_bf16(value));
}

template <class Element>
struct Mxfp8Tile {
  static constexpr int kBlock = 32;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place&, const F16 (&x)[32], Output<32>& out) {
    const BlockScales scales = mx_scales(block_amax(job, x), 1.0f / Element::kMax);
    for (int k = 0; k < 32; ++k) encode_8_bit<Element>(x[k] * scales.multiplier, scales.scale, k, out);
    store(out.scales, scales.bytes);
  }
};

template <class Element>
struct Fp8Tile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place&, const F16 (&x)[16], Output<16>& out) {
    const F16 multiplier = all(job.fp8.encode), one = all(1.0f);
    for (int k = 0; k < 16; ++k) encode_8_bit<Element>(x[k] * multiplier, one, k, out);
  }
};

struct CastTile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob&, const Place&, const F16 (&x)[16], Output<16>& out) {
    for (int k = 0; k < 16; ++k) out.values[k] = narrow_exact(rounded_to_bf16(x[k]));
  }
};

/// Sixteen vectors to sixteen rows.
NIBBLE_LANES void store_transposed(const H16* columns, std::uint16_t* out, std::int64_t stride) {
  H16 half[2][8], next[8];
  for (int i = 0; i < 8; ++i) {
    half[0][i] = __builtin_shuffle(columns[i], columns[i + 8],
                                   H16{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
    half[1][i] = __builtin_shuffle(columns[i], columns[i + 8],
                                   H16{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
  }
  for (int h = 0; h < 2; ++h) {
    for (int pass = 0; pass < 3; ++pass) {
      for (int i = 0; i < 4; ++i) {
        next[2 * i] = __builtin_shuffle(half[h][i], half[h][i + 4],
                                        H16{0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27});
        next[2 * i + 1] = __builtin_shuffle(half[h][i], half[h][i + 4],
                                            H16{4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31});
      }
      for (int i = 0; i < 8; ++i) half[h][i] = next[i];
    }
    for (int i = 0; i < 8; ++i) store(out + (8 * h + i) * stride, half[h][i]);
  }
}

template <int N>
NIBBLE_LANES void store_values(const QuantizeJob& job, const Place& at, int cols, const Output<N>& out) {
  auto* to = reinterpret_cast<std::uint16_t*>(job.values + at.row * job.values_stride + at.col);
  if (cols == N && at.lanes == 16) {
    for (int h = 0; h < N; h += 16) store_transposed(out.values + h, to + h, job.values_stride);
    return;
  }
  for (int l = 0; l < at.lanes; ++l) {
    for (int k = 0; k < cols; ++k) to[l * job.values_stride + k] = out.values[k][l];
  }
}

template <int N>
NIBBLE_LANES void store_codes(const QuantizeJob& job, const Place& at, int cols, bool packed,
                              const Output<N>& out) {
  std::uint8_t* to = job.codes + at.row * job.codes_stride + (packed ? at.col / 2 : at.col);
  alignas(64) std::uint8_t bytes[N][16];
  for (int k = 0; k < N; ++k) store(bytes[k], out.codes[k]);
  for (int l = 0; l < at.lanes; ++l, to += job.codes_stride) {
    if (packed) {
      for (int k = 0; k < cols; k += 2)
        to[k / 2] = static_cast<std::uint8_t>(bytes[k][l] | bytes[k + 1][l] << 4);
    } else {
      for (int k = 0; k < cols; ++k) to[k] = bytes[k][l];
    }
  }
}

/// Columns are taken in chunks of 64, so that what a chunk of several strips reads and writes stays close.
template <class Tile>
void quantize_tiles(const QuantizeJob& job, const QuantizePart& part) {
  constexpr int N = Tile::kBlock;
  const bool packed = job.spec.format == Format::Nvfp4 || job.spec.format == Format::Mxfp4;
  const RoundKeys keys = round_keys(job.random);
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  for (std::int64_t chunk = part.col; chunk < col_end; chunk += 64) {
    const std::int64_t chunk_end = chunk + 64 < col_end ? chunk + 64 : col_end;
    for (std::int64_t row = part.row; row < row_end; row += 16) {
      for (std::int64_t col = chunk; col < chunk_end; col += N) {
        const Place at{row, col, static_cast<int>(row_end - row < 16 ? row_end - row : 16), &keys};
        const int cols = chunk_end - col < N ? static_cast<int>(chunk_end - col) : N;
        F16 x[N];
        Output<N> out;
        load_tile(job, at, x);
        Tile::encode(job, at, x, out);
        if (job.values) store_values(job, at, cols, out);
        if (job.codes) store_codes(job, at, cols, packed, out);
        if (job.scales) {
          for (int l = 0; l < at.lanes; ++l)
            job.scales[(row + l) * job.scales_stride + col / N] = out.scales[l];
        }
      }
    }
  }
}

/// E4M3::stochastic_exact in every lane, of positive numbers.
NIBBLE_LANES U16 stochastic_e4m3(const F16& x, const U16& random) {
  const U16 a = as_bits(x);
  const U16 normal = ((a + (random >> 4)) >> E4M3::Bits::kShift) - E4M3::Bits::kRebias;
  const F16 below = a < E4M3::Bits::kMinNormal ? x : F16{};
  const U16 units = (U16) __builtin_convertvector(below * 0x1p33f, I16);
  return min_of(a < E4M3::Bits::kMinNormal ? (units + random) >> 24 : normal, U16{} + E4M3::kMaxBits);
}

/// MS-EDEN of 16 rows of a group from (row, col) on: quant/eden.h in every lane.
void eden_group(const QuantizeJob& job, std::int64_t row, std::int64_t col, int lanes) {
  const auto elements = static_cast<std::uint64_t>(job.row_elements);
  const std::int64_t end = col + job.spec.eden_group < job.cols ? col + job.spec.eden_group : job.cols;
  F16 codes[kLargestRotation], base[kLargestRotation / 16], squares{}, products{};
  for (std::int64_t j = col; j < end; j += 16) {
    F16 x[16], *q = codes + (j - col);
    load_tile(job, {row, j, lanes, nullptr}, x);
    const F16 amax = as_float(block_amax(job, x)) * job.amax_factor;
    const F16 scale = rounded_scales(amax * (job.nvfp4.encode * nvfp4::kOneSixth), job.nvfp4).scale;
    base[(j - col) / 16] = scale == 0.0f ? all(1.0f) : scale;
    const F16 multiplier = min_or_limit(1.0f / (base[(j - col) / 16] * job.nvfp4.decode), kFloatMax);
    for (int k = 0; k < 16; ++k) {
      const F16 r = x[k] * multiplier;
      q[k] = nearest_code(r);
      squares = squares + r * r;
      products = products + r * q[k];
    }
  }
  const F16 quotient = squares / products;
  const F16 usable = magnitude_of(quotient) < kInfinityBits ? quotient : all(1.0f);
  const F16 correction = products > 0.0f ? usable : all(1.0f);
  for (std::int64_t j = col; j < end; j += 16) {
    alignas(64) std::uint32_t random[16];
    for (int l = 0; l < 16; ++l) {
      const auto i = static_cast<std::uint64_t>(row + l), at = static_cast<std::uint64_t>(j);
      random[l] = random_scale_bits24(job.random, job.transpose ? at * elements + i : i * elements + at);
    }
    const U16 bits = stochastic_e4m3(base[(j - col) / 16] * correction, load<U16>(random));
    const F16 scale = small_value<E4M3::Bits>(bits);
    Output<16> out;
    for (int k = 0; k < 16; ++k) {
      const F16& q = codes[j - col + k];
      const U16 sign = as_bits(q) & 0x80000000u;
      out.values[k] = narrow_exact(q * scale);
      if (job.codes != nullptr) out.codes[k] = narrow_bytes(e2m1_code(as_float(magnitude_of(q)), sign));
    }
    store(out.scales, narrow_bytes(bits));
    const Place at{row, j, lanes, nullptr};
    const int cols = static_cast<int>(end - j < 16 ? end - j : 16);
    if (job.values) store_values(job, at, cols, out);
    if (job.codes) store_codes(job, at, cols, true, out);
    for (int l = 0; l < lanes && job.scales != nullptr; ++l)
      job.scales[(row + l) * job.scales_stride + j / 16] = out.scales[l];
  }
}

void eden_tiles(const QuantizeJob& job, const QuantizePart& part) {
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  for (std::int64_t row = part.row; row < row_end; row += 16) {
    const int lanes = static_cast<int>(row_end - row < 16 ? row_end - row : 16);
    for (std::int64_t col = part.col; col < col_end; col += job.spec.eden_group)
      eden_group(job, row, col, lanes);
  }
}

/// Tiles of 16 result rows x N columns, N a multiple of the rotation's size.
template <int N>
void rotate_tiles(const RotateJob& job, const QuantizePart& part) {
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  for (std::int64_t row = part.row; row < row_end; row += 16) {
    const int lanes = static_cast<int>(row_end - row < 16 ? row_end - row : 16);
    for (std::int64_t col = part.col; col < col_end; col += N) {
      const int cols = static_cast<int>(col_end - col < N ? col_end - col : N);
      F16 x[N];
      load_tile(job.source, {row, col, lanes, nullptr}, x);
      for (int k = 0; k < N; k += job.size) hadamard(x + k, job.size, job.signs);
      H16 values[N];
      for (int k = 0; k < N; ++k) values[k] = narrow_exact(rounded_to_bf16(x[k]));
      auto* to = reinterpret_cast<std::uint16_t*>(job.out + row * job.row_stride + col * job.col_stride);
      if (lanes == 16 && job.row_stride == 1) {
        for (int k = 0; k < cols; ++k) store(to + k * job.col_stride, values[k]);
      } else if (lanes == 16 && cols == N && job.col_stride == 1) {
        for (int h = 0; h < N; h += 16) store_transposed(values + h, to + h, job.row_stride);
      } else {
        for (int l = 0; l < lanes; ++l) {
          for (int k = 0; k < cols; ++k) to[l * job.row_stride + k * job.col_stride] = values[k][l];
        }
      }
    }
  }
}

/// The largest magnitude as an integer of the element's width; what is above `limit` counts as 0.
template <class Word>
NIBBLE_LANES Word amax_of_rows(const char* x, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                               Word limit) {
  typedef Word V __attribute__((vector_size(64)));
  constexpr std::int64_t kLanes = 64 / sizeof(Word);
  constexpr auto kMagnitude = static_cast<Word>(Word{static_cast<Word>(~Word{0})} >> 1);
  V largest[2] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    const char* row = x + r * stride * static_cast<std::int64_t>(sizeof(Word));
    for (std::int64_t c = 0, turn = 0; c < cols; c += kLanes, turn ^= 1) {
      V v{};
      if (cols - c >= kLanes) {
        v = load<V>(row + c * static_cast<std::int64_t>(sizeof(Word)));
      } else {
        __builtin_memcpy(&v, row + c * static_cast<std::int64_t>(sizeof(Word)),
                         static_cast<std::size_t>(cols - c) * sizeof(Word));
      }
      v &= kMagnitude;
      v = v > limit ? V{} : v;
      V& m = largest[turn];
      m = v > m ? v : m;
    }
  }
  Word out = 0;
  for (const V& m : largest)
    for (int l = 0; l < kLanes; ++l) out = m[l] > out ? m[l] : out;
  return out;
}

}  // namespace

std::uint32_t rotated_amax_bits(const QuantizeJob& job, const QuantizePart& part) {
  const bool drop_nan = job.spec.non_finite == NonFinite::AsTe;
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  U16 amax{};
  for (std::int64_t chunk = part.col; chunk < col_end; chunk += 64) {
    const std::int64_t chunk_end = chunk + 64 < col_end ? chunk + 64 : col_end;
    for (std::int64_t row = part.row; row < row_end; row += 16) {
      for (std::int64_t col = chunk; col < chunk_end; col += 16) {
        F16 x[16];
        load_tile(job, {row, col, static_cast<int>(row_end - row < 16 ? row_end - row : 16), nullptr}, x);
        for (int k = 0; k < 16; ++k) {
          const U16 a = magnitude_of(x[k]);
          amax = max_of(amax, drop_nan ? without_nan(a) : a);
        }
      }
    }
  }
  std::uint32_t largest = 0;
  for (int l = 0; l < 16; ++l) largest = amax[l] > largest ? amax[l] : largest;
  return largest;
}

void rotate_part(const RotateJob& job, const QuantizePart& part) {
  if (job.size <= 16) return rotate_tiles<16>(job, part);
  if (job.size == 32) return rotate_tiles<32>(job, part);
  if (job.size == 64) return rotate_tiles<64>(job, part);
  rotate_tiles<128>(job, part);
}

std::uint32_t amax_bits(const void* x, bool x_is_f32, std::int64_t rows, std::int64_t cols,
                        std::int64_t stride, bool drop_nan) {
  return x_is_f32 ? amax_of_rows<std::uint32_t>(static_cast<const char*>(x), rows, cols, stride,
                                                drop_nan ? kInfinityBits : 0x7FFFFFFFu)
                  : std::uint32_t{amax_of_rows<std::uint16_t>(static_cast<const char*>(x), rows, cols, stride,
                                                              drop_nan ? 0x7F80 : 0x7FFF)}
                        << 16;
}

void quantize_part(const QuantizeJob& job, const QuantizePart& part) {
  switch (job.spec.format) {
    case Format::Fp32:
    case Format::Bf16:
      return quantize_tiles<CastTile>(job, part);
    case Format::Nvfp4:
      if (job.spec.eden_group != 0) return eden_tiles(job, part);
      if (job.spec.four_over_six != FourOverSix::Off) return quantize_tiles<FourOverSixTile>(job, part);
      return with_rounder(job.spec.rounding, [&](auto round) {
        using Round = decltype(round);
        job.spec.non_finite == NonFinite::AsTe ? quantize_tiles<Nvfp4Tile<Round, true>>(job, part)
                                               : quantize_tiles<Nvfp4Tile<Round, false>>(job, part);
      });
    case Format::Mxfp4:
      return with_rounder(job.spec.rounding,
                          [&](auto round) { quantize_tiles<Mxfp4Tile<decltype(round)>>(job, part); });
    case Format::Mxfp8E4M3:
      return quantize_tiles<Mxfp8Tile<E4M3>>(job, part);
    case Format::Mxfp8E5M2:
      return quantize_tiles<Mxfp8Tile<E5M2>>(job, part);
    case Format::Fp8E4M3:
      return quantize_tiles<Fp8Tile<E4M3>>(job, part);
    case Format::Fp8E5M2:
      return quantize_tiles<Fp8Tile<E5M2>>(job, part);
    default:
      return;  // not a common format: quantize_cpu.cpp takes the reference's blocks
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
