// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_lanes.h"
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
  int lanes;  ///< rows that exist, up to 16
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
  } else {
    for (int k = 0; k < N; ++k) x[k] = k < filled ? load_lanes(job, at.col + k, at.row, at.lanes) : F16{};
  }
  if (job.spec.rotation == 0) return;
  for (int h = 0; h < N; h += 16) {
    auto& part = *reinterpret_cast<F16(*)[16]>(x + h);
    hadamard16(part, job.spec.sign_mask);
    for (int k = 0; k < 16; ++k) part[k] = as_float(nearest_bf16(part[k]) << 16);
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
      std::uint64_t group[16];
      alignas(64) std::uint8_t bytes[256];
      for (int k = 0; k < 16; ++k) {
        const auto token = static_cast<std::uint64_t>(at.col + h + k);
        group[k] = (job.random.first_element + token * row + static_cast<std::uint64_t>(at.row)) / 16;
      }
      random_groups(job.random, group, bytes);
      for (int k = 0; k < 16; ++k)
        store(random[h + k], __builtin_convertvector(load<B16>(bytes + 16 * k), U16));
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
  const F16 multiplier = load<F16>(scales.multiplier), scale = load<F16>(scales.scale);
  for (int k = 0; k < N; ++k) {
    const F16 v = x[k] * multiplier;
    U16 r{};
    if constexpr (Round::kRounding != Rounding::NearestEven) r = load<U16>(random[k]);
    const F16 q = Round::round(saturated_e2m1(v), r);
    const U16 sign = code_sign<kSeesNan>(v);
    const F16 value = as_float(as_bits(q * scale) | sign);
    out.values[k] = kExact ? narrow_exact(value) : __builtin_convertvector(nearest_bf16(value), H16);
    if (job.codes != nullptr) out.codes[k] = __builtin_convertvector(e2m1_code(q, sign), B16);
  }
  __builtin_memcpy(out.scales, scales.bytes, 16);
}

/// How a format turns a tile into its output.
template <class Round, bool kSeesNan>
struct Nvfp4Tile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place& at, const F16 (&x)[16], Output<16>& out) {
    BlockScales scales;
    nvfp4_scales(block_amax(job, x), job, scales);
    encode_e2m1<Round, kSeesNan, true>(job, at, x, scales, out);
  }
};

template <class Round>
struct Mxfp4Tile {
  static constexpr int kBlock = 32;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place& at, const F16 (&x)[32], Output<32>& out) {
    BlockScales scales;
    alignas(64) float amax[16];
    store(amax, block_amax(job, x));
    for (int l = 0; l < 16; ++l) {
      const E8M0 scale = mxfp4_scale(amax[l]);
      scales.multiplier[l] = scale.inverse();
      scales.scale[l] = scale.value();
      scales.bytes[l] = scale.bits;
    }
    encode_e2m1<Round, true, false>(job, at, x, scales, out);
  }
};

template <class Element>
struct Mxfp8Tile {
  static constexpr int kBlock = 32;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place&, const F16 (&x)[32], Output<32>& out) {
    alignas(64) float amax[16], v[16];
    E8M0 scale[16];
    store(amax, block_amax(job, x));
    for (int l = 0; l < 16; ++l) {
      scale[l] = mxfp8_scale<Element>(amax[l]);
      out.scales[l] = scale[l].bits;
    }
    for (int k = 0; k < 32; ++k) {
      std::uint8_t codes[16];
      bf16 values[16];
      store(v, x[k]);
      for (int l = 0; l < 16; ++l) {
        const Element code = Element::nearest(v[l] * scale[l].inverse());
        codes[l] = code.bits;
        values[l] = exact_operand(code, scale[l]);
      }
      out.codes[k] = load<B16>(codes);
      out.values[k] = load<H16>(values);
    }
  }
};

template <class Element>
struct Fp8Tile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob& job, const Place&, const F16 (&x)[16], Output<16>& out) {
    const Fp8Scale scale = job.fp8;
    for (int k = 0; k < 16; ++k) {
      alignas(64) float v[16];
      std::uint8_t codes[16];
      bf16 values[16];
      store(v, x[k]);
      for (int l = 0; l < 16; ++l) {
        const Element code = encode_fp8<Element>(v[l], scale);
        codes[l] = code.bits;
        values[l] = exact_operand(code);
      }
      out.codes[k] = load<B16>(codes);
      out.values[k] = load<H16>(values);
    }
  }
};

struct CastTile {
  static constexpr int kBlock = 16;
  NIBBLE_HD static void encode(const QuantizeJob&, const Place&, const F16 (&x)[16], Output<16>& out) {
    for (int k = 0; k < 16; ++k) out.values[k] = __builtin_convertvector(nearest_bf16(x[k]), H16);
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
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  for (std::int64_t chunk = part.col; chunk < col_end; chunk += 64) {
    const std::int64_t chunk_end = chunk + 64 < col_end ? chunk + 64 : col_end;
    for (std::int64_t row = part.row; row < row_end; row += 16) {
      for (std::int64_t col = chunk; col < chunk_end; col += N) {
        const Place at{row, col, static_cast<int>(row_end - row < 16 ? row_end - row : 16)};
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
        load_tile(job, {row, col, static_cast<int>(row_end - row < 16 ? row_end - row : 16)}, x);
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

std::uint32_t amax_bits(const void* x, bool x_is_f32, std::int64_t rows, std::int64_t cols,
                        std::int64_t stride, bool drop_nan) {
  std::uint32_t f32_amax = 0;
  std::uint16_t bf16_amax = 0;
  const std::uint16_t bf16_limit = drop_nan ? 0x7F80 : 0x7FFF;
  const std::uint32_t f32_limit = drop_nan ? kInfinityBits : 0x7FFFFFFFu;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (x_is_f32) {
      const float* row = static_cast<const float*>(x) + r * stride;
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::uint32_t bits = magnitude_bits(row[c]), a = bits > f32_limit ? 0u : bits;
        f32_amax = a > f32_amax ? a : f32_amax;
      }
    } else {
      const std::uint16_t* row = static_cast<const std::uint16_t*>(x) + r * stride;
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::uint16_t bits = row[c] & 0x7FFF, a = bits > bf16_limit ? std::uint16_t{0} : bits;
        bf16_amax = a > bf16_amax ? a : bf16_amax;
      }
    }
  }
  return x_is_f32 ? f32_amax : static_cast<std::uint32_t>(bf16_amax) << 16;
}

void quantize_part(const QuantizeJob& job, const QuantizePart& part) {
  switch (job.spec.format) {
    case Format::Fp32:
    case Format::Bf16:
      return quantize_tiles<CastTile>(job, part);
    case Format::Nvfp4:
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
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
