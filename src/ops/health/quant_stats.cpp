// SPDX-License-Identifier: Apache-2.0
#include "ops/health/quant_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "ops/health/quant_stats_rows.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

/// The sums of `n` elements: in registers, then added. The smallest magnitude is found among the bits, where
/// those of zero, less one, are the largest.
template <class X, class Q>
void count_elements(std::int64_t n, X&& x_at, Q&& q_at, QuantStats& s) {
  double x2 = 0, e2 = 0, sum_abs = 0, sum_e = 0, xq = 0, q2 = 0, sum_x = 0;
  std::int64_t nonzero = 0, flushed = 0;
  std::uint32_t smallest = 0xFFFFFFFF;
  for (std::int64_t j = 0; j < n; ++j) {
    const float x = x_at(j), q = q_at(j), size = std::fabs(x);
    const double xd = x, qd = q, e = qd - xd;
    nonzero += x != 0.0f ? 1 : 0;
    flushed += x != 0.0f && q == 0.0f ? 1 : 0;
    x2 += xd * xd;
    e2 += e * e;
    sum_abs += size;
    sum_e += std::copysign(1.0, xd) * e;  // without a branch: signs are random
    xq += xd * qd;
    q2 += qd * qd;
    sum_x += xd;
    std::uint32_t bits;
    std::memcpy(&bits, &size, sizeof bits);
    smallest = std::min(smallest, bits - 1);
  }
  s.nonzero += nonzero;
  s.flushed += flushed;
  s.sum_x2 += x2;
  s.sum_e2 += e2;
  s.sum_abs += sum_abs;
  s.sum_e += sum_e;
  s.sum_xq += xq;
  s.sum_q2 += q2;
  s.sum_x += sum_x;
  smallest += 1;  // zero where there was none
  float amin;
  std::memcpy(&amin, &smallest, sizeof amin);
  s.amin = smaller_magnitude(s.amin, amin);
}

void count_codes(const MeasureQuant& m, std::int64_t row, QuantStats& s) {
  const std::int64_t cols = m.x_RC.size(1);
  if (cols <= 0) return;
  const std::uint8_t* codes = &m.codes(row, 0);
  if (info(m.spec.format).element_bits != 4) {
    for (std::int64_t j = 0; j < cols; ++j) s.saturated += is_largest(m.spec.format, codes[j]) ? 1 : 0;
    return;
  }
  std::int64_t counts[16] = {};
  for (std::int64_t j = 0; j + 1 < cols; j += 2) {
    ++counts[codes[j / 2] & 15];
    ++counts[codes[j / 2] >> 4];
  }
  if (cols % 2 == 1) ++counts[codes[cols / 2] & 15];
  for (int c = 0; c < 16; ++c) {
    s.code_histogram[c] += counts[c];
    s.saturated += is_largest(m.spec.format, static_cast<std::uint8_t>(c)) ? counts[c] : 0;
  }
}

void count_scale(Format format, std::uint8_t bits, QuantStats& s) {
  if (format == Format::Nvfp4) {
    s.scale_max += bits == E4M3::kMaxBits ? 1 : 0;
    s.scale_subnormal += bits > 0 && bits < 8 ? 1 : 0;
    s.scale_zero += bits == 0 ? 1 : 0;
    ++s.scale_histogram[(bits & 0x7F) >> 3];
  } else {
    s.scale_max += bits == 0xFE ? 1 : 0;
    s.scale_subnormal += bits < 127 - 6 ? 1 : 0;
    ++s.scale_histogram[std::clamp(bits - 127 + 7, 0, 15)];
  }
}

/// The byte of a block's scale; of an FP32 scale its exponent, which E8M0 would store.
std::uint8_t scale_byte(const MeasureQuant& m, std::int64_t row, std::int64_t block) {
  if (info(m.spec.format).block_scale_bits == 8) return m.scales(row, block);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &m.scales(row, 4 * block), 4);
  return static_cast<std::uint8_t>(bits >> 23);
}

/// Largest and smallest non-zero magnitude of a block.
struct BlockEnds {
  float largest = 0, smallest = 0;
};

template <class T>
BlockEnds ends_of(const View<const T>& x, std::int64_t row, std::int64_t rows, std::int64_t col,
                  std::int64_t cols) {
  float largest = 0;
  std::uint32_t smallest = 0xFFFFFFFF;  // see count_elements
  for (std::int64_t i = row; i < row + rows; ++i) {
    const T* const first = x.data() + i * x.stride(0) + col * x.stride(1);
    for (std::int64_t j = 0; j < cols; ++j) {
      const float size = std::fabs(to_float(first[j * x.stride(1)]));
      largest = size > largest ? size : largest;
      std::uint32_t bits;
      std::memcpy(&bits, &size, sizeof bits);
      smallest = std::min(smallest, bits - 1);
    }
  }
  smallest += 1;
  BlockEnds ends{.largest = largest};
  std::memcpy(&ends.smallest, &smallest, sizeof ends.smallest);
  return ends;
}

template <class T>
void count_blocks(const MeasureQuant& m, const View<const T>& x_RC, std::int64_t begin, std::int64_t end,
                  QuantStats& s) {
  const std::int64_t size = info(m.spec.format).block, step = m.spec.tile == Tile::Square ? size : 1;
  const std::int64_t cols = m.x_RC.size(1);
  for (std::int64_t i = begin; i < end; i += step) {
    for (std::int64_t j = 0; j < cols; j += size) {
      ++s.blocks;
      const BlockEnds ends = ends_of(x_RC, i, std::min(step, end - i), j, std::min(size, cols - j));
      if (ends.smallest == 0) {
        ++s.zero_blocks;
      } else {
        s.block_range = larger_magnitude(s.block_range, ends.largest / ends.smallest);
        count_scale(m.spec.format, scale_byte(m, i, j / size), s);
      }
    }
  }
}

}  // namespace

double QuantStats::flushed_share() const {
  return ratio(static_cast<double>(flushed), static_cast<double>(nonzero));
}
double QuantStats::saturated_share() const {
  return ratio(static_cast<double>(saturated), static_cast<double>(count));
}
double QuantStats::sqnr_db() const { return 10 * std::log10(sum_x2 / sum_e2); }
double QuantStats::bias() const { return ratio(sum_e, sum_abs); }
double QuantStats::cosine() const { return ratio(sum_xq, std::sqrt(sum_x2) * std::sqrt(sum_q2)); }
double QuantStats::crest() const { return ratio(amax, std::sqrt(ratio(sum_x2, static_cast<double>(count)))); }
double QuantStats::deviation() const {
  const double mean = ratio(sum_x, static_cast<double>(count));
  return std::sqrt(std::max(0.0, ratio(sum_x2, static_cast<double>(count)) - mean * mean));
}
double QuantStats::dynamic_range() const { return amin > 0 ? std::log2(double{amax} / amin) : 0; }
double QuantStats::block_dynamic_range() const { return block_range > 0 ? std::log2(block_range) : 0; }
double QuantStats::code_entropy() const {
  double total = 0, bits = 0;
  for (const std::int64_t n : code_histogram) total += static_cast<double>(n);
  for (const std::int64_t n : code_histogram) {
    if (n == 0) continue;
    const double p = static_cast<double>(n) / total;
    bits -= p * std::log2(p);
  }
  return bits;
}

QuantStats measured_quant(Stream& stream, MeasureQuant m) {
  const ArenaScope scope(stream.scratch());
  m.out = stream.scratch().take<QuantStats>(1).data();
  stream.device().zero(m.out, sizeof(QuantStats));
  measure_quant(stream, m);
  return read(stream.device(), m.out);
}

std::int64_t result_cols(const MeasureQuant& m) {
  const std::int64_t cols = m.x_RC.size(1);
  return m.spec.rotation == 0 ? cols : (cols + m.spec.rotation - 1) / m.spec.rotation * m.spec.rotation;
}

Dequantize decoding_of(const MeasureQuant& m, const View<float>& out) {
  return {.format = m.spec.format,
          .codes = m.codes,
          .scales = m.scales,
          .amax = m.amax,
          .scale = m.scale,
          .out_RC = out,
          .row_amax = m.row_amax,
          .scale_bound = m.spec.scale_bound,
          .amax_factor = amax_factor(m.spec)};
}

QuantStats measure_rows(const MeasureQuant& m, const View<const float>& decoded, std::int64_t begin,
                        std::int64_t end) {
  QuantStats s;
  const std::int64_t cols = m.x_RC.size(1);
  s.count = (end - begin) * cols;
  for (std::int64_t i = begin; i < end; ++i) {
    with_type(m.x_RC, [&](auto x_RC) {
      const auto* const x = x_RC.data() + i * x_RC.stride(0);
      const std::int64_t stride = x_RC.stride(1);
      const auto x_at = [&](std::int64_t j) { return to_float(x[j * stride]); };
      if (decoded.empty())
        count_elements(
            cols, x_at, [&](std::int64_t j) { return m.values(i, j).value(); }, s);
      else
        count_elements(
            cols, x_at, [q = &decoded(i, 0)](std::int64_t j) { return q[j]; }, s);
    });
    if (!decoded.empty()) count_codes(m, i, s);
  }
  if (info(m.spec.format).block != 0)
    with_type(m.x_RC, [&](auto x_RC) { count_blocks(m, x_RC, begin, end, s); });
  return s;
}

void set_tensor_numbers(const MeasureQuant& m, QuantStats& s) {
  s.amax = *m.amax;
  if (m.scale != nullptr) s.scale_inv_min = s.scale_inv_max = *m.scale;
}

void check(const MeasureQuant& m) {
  check(m.x_RC.rank() == 2 && m.out != nullptr && m.amax != nullptr,
        "measure_quant: x must be a matrix, amax and out must be given");
  if (is_quantized(m.spec.format)) {
    check(!m.codes.empty(), "measure_quant: {} needs codes", info(m.spec.format).name);
    const View<float> shape(nullptr, m.x_RC.size(0), result_cols(m));
    check(decoding_of(m, shape));
  } else {
    check(m.values.rank() == 2 && m.values.size(0) == m.x_RC.size(0) && m.values.size(1) == result_cols(m),
          "measure_quant: {} needs values of the shape of x", info(m.spec.format).name);
  }
}

}  // namespace nibble
