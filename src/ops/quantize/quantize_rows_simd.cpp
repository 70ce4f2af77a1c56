// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_lanes.h"

/// NVFP4 of BF16 rows as they lie: a vector is a block, sixteen blocks at a time. The maxima of the sixteen
/// come out of one reduction that also transposes, so that their scales are computed in one vector too.
namespace nibble::cpu::NIBBLE_SIMD {
namespace {

constexpr int kChunk = 256;  ///< columns of sixteen blocks

/// Lane b of the result is the largest lane of block b.
NIBBLE_LANES H16 maxima(H16 (&m)[16]) {
  for (int b = 0; b < 8; ++b) {
    const H16 low =
        __builtin_shuffle(m[b], m[b + 8], H16{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
    const H16 high =
        __builtin_shuffle(m[b], m[b + 8], H16{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
    m[b] = low > high ? low : high;
  }
  // Interleaves within each half: after the last step the lanes are in the order of the blocks.
  for (int d = 4; d > 0; d /= 2) {
    for (int b = 0; b < d; ++b) {
      const H16 low =
          __builtin_shuffle(m[b], m[b + d], H16{0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27});
      const H16 high =
          __builtin_shuffle(m[b], m[b + d], H16{4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31});
      m[b] = low > high ? low : high;
    }
  }
  return m[0];
}

template <bool kSeesNan>
NIBBLE_LANES H16 magnitude_of_bf16(const H16& x) {
  const H16 a = x & std::uint16_t{0x7FFF};
  if constexpr (!kSeesNan) return a;
  return a > std::uint16_t{0x7F80} ? H16{} : a;
}

/// BlockScales in memory, where one lane at a time is spread over a vector.
struct alignas(64) ChunkScales {
  float multiplier[16];
  float scale[16];
  std::uint8_t bytes[16];
};

/// Sixteen blocks of one row under known scales.
template <class Round, bool kSeesNan>
NIBBLE_LANES void encode_chunk(const std::uint16_t* x, const ChunkScales& scales, const std::uint8_t* random,
                               std::uint16_t* values, std::uint8_t* codes) {
  for (int b = 0; b < 16; ++b) {
    const F16 v = widen(load<H16>(x + 16 * b)) * scales.multiplier[b];
    U16 r{};
    if constexpr (Round::kRounding != Rounding::NearestEven) {
      r = widen_bytes(random + 16 * b);
    }
    const F16 q = Round::round(saturated_e2m1(v), r);
    const U16 sign = code_sign<kSeesNan>(v);
    if (values != nullptr) {
      store(values + 16 * b, narrow_exact(as_float(as_bits(q * scales.scale[b]) | sign)));
    }
    if (codes != nullptr) {
      const L8 pairs = reinterpret_cast<L8>(e2m1_code(q, sign));
      store_eight_bytes(codes + 8 * b, (pairs | pairs >> 28) & 0xFFu);
    }
  }
}

/// Up to 256 columns of a group of rows that share block scales: one row, or sixteen.
template <class Round, bool kSeesNan>
void encode_group(const QuantizeJob& job, const RoundKeys& keys, std::int64_t row, int rows, std::int64_t col,
                  std::int64_t cols) {
  const auto* source = static_cast<const std::uint16_t*>(job.x);
  const bool whole = cols == kChunk;
  alignas(64) std::uint16_t padded[kChunk];
  const auto chunk_of = [&](int r) {
    const std::uint16_t* x = source + (row + r) * job.x_stride + col;
    if (whole) return x;
    __builtin_memset(padded, 0, sizeof(padded));
    __builtin_memcpy(padded, x, static_cast<std::size_t>(cols) * 2);
    return static_cast<const std::uint16_t*>(padded);
  };

  H16 m[16];
  for (int b = 0; b < 16; ++b) m[b] = H16{};
  for (int r = 0; r < rows; ++r) {
    const std::uint16_t* x = chunk_of(r);
    for (int b = 0; b < 16; ++b) {
      const H16 a = magnitude_of_bf16<kSeesNan>(load<H16>(x + 16 * b));
      m[b] = a > m[b] ? a : m[b];
    }
  }
  const BlockScales lanes = nvfp4_scales(widen_halves(maxima(m)) << 16, job);
  ChunkScales scales;
  store(scales.multiplier, lanes.multiplier);
  store(scales.scale, lanes.scale);
  store(scales.bytes, lanes.bytes);

  const std::size_t blocks = static_cast<std::size_t>(cols + 15) / 16;
  for (int r = 0; r < rows; ++r) {
    alignas(64) std::uint8_t random[256];
    if constexpr (Round::kRounding == Rounding::Stochastic) {
      const std::uint64_t first =
          job.random.first_element + static_cast<std::uint64_t>((row + r) * job.row_elements + col);
      random_groups(job.random, keys, first / 16, 1, random);
    }
    std::uint16_t* values =
        job.values ? reinterpret_cast<std::uint16_t*>(job.values + (row + r) * job.values_stride + col)
                   : nullptr;
    std::uint8_t* codes = job.codes ? job.codes + (row + r) * job.codes_stride + col / 2 : nullptr;
    const std::uint16_t* x = chunk_of(r);
    if (whole) {
      encode_chunk<Round, kSeesNan>(x, scales, random, values, codes);
    } else {
      alignas(64) std::uint16_t part_values[kChunk];
      alignas(64) std::uint8_t part_codes[kChunk / 2];
      encode_chunk<Round, kSeesNan>(x, scales, random, values ? part_values : nullptr,
                                    codes ? part_codes : nullptr);
      if (values) __builtin_memcpy(values, part_values, static_cast<std::size_t>(cols) * 2);
      if (codes) __builtin_memcpy(codes, part_codes, static_cast<std::size_t>(cols + 1) / 2);
    }
    if (job.scales) {
      __builtin_memcpy(job.scales + (row + r) * job.scales_stride + col / 16, scales.bytes, blocks);
    }
  }
}

template <class Round, bool kSeesNan>
void encode_rows(const QuantizeJob& job, const QuantizePart& part) {
  const std::int64_t group = job.spec.tile == Tile::Square ? 16 : 1;
  const RoundKeys keys = round_keys(job.random);
  const std::int64_t row_end = part.row + part.rows, col_end = part.col + part.cols;
  for (std::int64_t row = part.row; row < row_end; row += group) {
    const auto rows = static_cast<int>(row_end - row < group ? row_end - row : group);
    for (std::int64_t col = part.col; col < col_end; col += kChunk) {
      const std::int64_t cols = col_end - col < kChunk ? col_end - col : kChunk;
      encode_group<Round, kSeesNan>(job, keys, row, rows, col, cols);
    }
  }
}

}  // namespace

void quantize_nvfp4_rows(const QuantizeJob& job, const QuantizePart& part) {
  const bool sees_nan = job.spec.non_finite == NonFinite::AsTe;
  if (job.spec.rounding == Rounding::NearestEven) {
    return sees_nan ? encode_rows<NearestLanes, true>(job, part)
                    : encode_rows<NearestLanes, false>(job, part);
  }
  sees_nan ? encode_rows<StochasticLanes, true>(job, part) : encode_rows<StochasticLanes, false>(job, part);
}

}  // namespace nibble::cpu::NIBBLE_SIMD
