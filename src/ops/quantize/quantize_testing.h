// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/device.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"

namespace nibble::testing {

/// A matrix that owns its numbers, stored as FP32 or BF16, with room between the rows.
struct TestMatrix {
  std::int64_t rows = 0, cols = 0, stride = 0;
  bool f32 = false;
  std::vector<float> wide;
  std::vector<bf16> narrow;

  /// Room between rows is filled with NaN: who reads it shows it.
  TestMatrix(std::int64_t r, std::int64_t c, bool as_f32, std::int64_t gap = 0)
      : rows(r), cols(c), stride(c + gap), f32(as_f32) {
    const auto n = static_cast<std::size_t>(r * stride);
    if (f32)
      wide.assign(n, NAN);
    else
      narrow.assign(n, bf16{0x7FC0});
  }
  void set(std::int64_t r, std::int64_t c, float x) {
    const auto at = static_cast<std::size_t>(r * stride + c);
    if (f32)
      wide[at] = x;
    else
      narrow[at] = bf16::nearest(x);
  }
  ConstRealView view() const {
    Layout l = Layout::contiguous(rows, cols);
    l.stride[0] = stride;
    return {f32 ? static_cast<const void*>(wide.data()) : narrow.data(), f32 ? DType::F32 : DType::BF16, l};
  }
};

/// Uniform in (0, 1), standard normal: by Philox, so that the numbers are the same everywhere.
inline double uniform(std::uint64_t seed, std::int64_t i) {
  return initial_uniform(seed, 1, static_cast<std::uint64_t>(i));
}
inline double normal(std::uint64_t seed, std::int64_t i) {
  return initial_normal(seed, 2, static_cast<std::uint64_t>(i));
}

/// Everything a quantiser writes, owned.
struct Quantized {
  QuantizedShape shape;
  float amax = -1, scale = -1;
  std::vector<std::uint16_t> values;
  std::vector<std::uint8_t> codes, scales;
};

struct QuantizeOptions {
  QuantSpec spec;
  bool transpose = false;
  RandomKey random{};
  std::int64_t row_elements = 0;
  std::optional<float> amax_given;
};

/// Runs the op and collects its outputs. Outputs start as a pattern, so that a byte left alone is seen.
inline Quantized quantize_all(Stream& stream, const ConstRealView& x, const QuantizeOptions& o) {
  Quantized out;
  out.shape = quantized_shape(o.spec, x.size(0), x.size(1), o.transpose);
  const QuantizedShape& s = out.shape;
  out.values.assign(static_cast<std::size_t>(s.rows * s.cols), 0x5A5A);
  out.codes.assign(static_cast<std::size_t>(s.rows * s.code_cols), 0x5A);
  out.scales.assign(static_cast<std::size_t>(s.rows * s.scale_cols), 0x5A);
  Quantize q{.x_RC = x,
             .spec = o.spec,
             .transpose = o.transpose,
             .random = o.random,
             .row_elements = o.row_elements};
  if (o.amax_given) q.amax_given = &*o.amax_given;
  q.amax = &out.amax;
  q.scale = &out.scale;
  q.values = View<bf16>(reinterpret_cast<bf16*>(out.values.data()), s.rows, s.cols);
  if (s.code_cols != 0) q.codes = View<std::uint8_t>(out.codes.data(), s.rows, s.code_cols);
  if (s.scale_cols != 0) q.scales = View<std::uint8_t>(out.scales.data(), s.rows, s.scale_cols);
  quantize(stream, q);
  return out;
}

}  // namespace nibble::testing
