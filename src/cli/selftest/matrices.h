// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "numeric/e2m1.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"

/// Matrices that the self-tests work on.
namespace nibble::selftest {

/// Normal numbers in FP32, scaled by `scale`; the same on every machine to the last bits of log and cos.
inline std::vector<float> normal_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                                        double scale = 1) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(scale * initial_normal(seed, 3, i));
  return x;
}

/// Everything a quantiser writes, with its memory.
struct QuantizedMatrix {
  QuantizedShape shape;
  float amax = -1, scale = -1;
  std::vector<bf16> values;
  std::vector<std::uint8_t> codes, scales;
};

struct QuantizeCase {
  QuantSpec spec;
  bool transpose = false;
  RandomKey random{};
  const float* amax_given = nullptr;
};

inline QuantizedMatrix quantize_matrix(Stream& stream, ConstRealView x, const QuantizeCase& c) {
  QuantizedMatrix q;
  q.shape = quantized_shape(c.spec, x.size(0), x.size(1), c.transpose);
  const QuantizedShape& s = q.shape;
  q.values.resize(static_cast<std::size_t>(s.rows * s.cols));
  q.codes.resize(static_cast<std::size_t>(s.rows * s.code_cols));
  q.scales.resize(static_cast<std::size_t>(s.rows * s.scale_cols));
  Quantize op{.x_RC = x, .spec = c.spec, .transpose = c.transpose, .random = c.random};
  op.amax_given = c.amax_given;
  op.amax = &q.amax;
  op.scale = &q.scale;
  op.values = View<bf16>(q.values.data(), s.rows, s.cols);
  if (s.code_cols != 0) op.codes = View<std::uint8_t>(q.codes.data(), s.rows, s.code_cols);
  if (s.scale_cols != 0) op.scales = View<std::uint8_t>(q.scales.data(), s.rows, s.scale_cols);
  quantize(stream, op);
  return q;
}

/// Code of an element of packed 4-bit codes: the even column is the low nibble.
inline E2M1 code_at(const QuantizedMatrix& q, std::int64_t row, std::int64_t col) {
  const auto byte = q.codes[static_cast<std::size_t>(row * q.shape.code_cols + col / 2)];
  return {static_cast<std::uint8_t>(byte >> (4 * (col % 2)) & 0xF)};
}

}  // namespace nibble::selftest
