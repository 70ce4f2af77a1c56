// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/host_vector.h"
#include "numeric/e2m1.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"

/// Matrices that the self-tests work on. They lie in host memory that the stream's device reads and writes.
namespace nibble::selftest {

/// Normal numbers in FP32, scaled by `scale`; the same on every machine to the last bits of log and cos.
inline HostVector<float> normal_matrix(Device& device, std::int64_t rows, std::int64_t cols,
                                       std::uint64_t seed, double scale = 1) {
  HostVector<float> x(static_cast<std::size_t>(rows * cols), device);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(scale * initial_normal(seed, 3, i));
  return x;
}

inline HostVector<bf16> narrowed(Device& device, const HostVector<float>& x) {
  HostVector<bf16> out(x.size(), device);
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = bf16::nearest(x[i]);
  return out;
}

/// Everything a quantiser writes, with its memory.
struct QuantizedMatrix {
  QuantizedShape shape;
  HostVector<float> numbers;  ///< amax and scale, where ops find them
  HostVector<bf16> values;
  HostVector<std::uint8_t> codes, scales;

  QuantizedMatrix(Device& device, const QuantizedShape& s)
      : shape(s),
        numbers(2, -1.0f, device),
        values(static_cast<std::size_t>(s.rows * s.cols), device),
        codes(static_cast<std::size_t>(s.rows * s.code_cols), device),
        scales(static_cast<std::size_t>(s.rows * s.scale_cols), device) {}

  float amax() const { return numbers[0]; }
  float scale() const { return numbers[1]; }
  View<bf16> values_view() { return View<bf16>(values.data(), shape.rows, shape.cols); }
  View<const bf16> values_view() const { return View<const bf16>(values.data(), shape.rows, shape.cols); }
  View<std::uint8_t> codes_view() {
    if (shape.code_cols == 0) return {};
    return View<std::uint8_t>(codes.data(), shape.rows, shape.code_cols);
  }
  View<std::uint8_t> scales_view() {
    if (shape.scale_cols == 0) return {};
    return View<std::uint8_t>(scales.data(), shape.rows, shape.scale_cols);
  }
};

/// What a quantiser is asked for. A layer asks for values or for codes, tests of bytes for both; a GPU has
/// kernels of their own for either alone.
enum class Outputs { All, Values, Codes };

struct QuantizeCase {
  QuantSpec spec;
  bool transpose = false;
  RandomKey random{};
  Outputs outputs = Outputs::All;
  const float* amax_given = nullptr;  ///< this and `fault` lie in memory of the device, as x does
  std::int64_t* fault = nullptr;
};

/// Waits for the result.
inline QuantizedMatrix quantize_matrix(Stream& stream, ConstRealView x, const QuantizeCase& c) {
  QuantizedMatrix q(stream.device(), quantized_shape(c.spec, x.size(0), x.size(1), c.transpose));
  const bool values = c.outputs != Outputs::Codes, codes = c.outputs != Outputs::Values;
  quantize(stream, {.x_RC = x,
                    .spec = c.spec,
                    .transpose = c.transpose,
                    .random = c.random,
                    .amax_given = c.amax_given,
                    .amax = q.numbers.data(),
                    .scale = q.numbers.data() + 1,
                    .values = values ? q.values_view() : View<bf16>(),
                    .codes = codes ? q.codes_view() : View<std::uint8_t>(),
                    .scales = codes ? q.scales_view() : View<std::uint8_t>(),
                    .fault = c.fault});
  stream.device().synchronize();
  return q;
}

/// Code of an element of packed 4-bit codes: the even column is the low nibble.
inline E2M1 code_at(const QuantizedMatrix& q, std::int64_t row, std::int64_t col) {
  const auto byte = q.codes[static_cast<std::size_t>(row * q.shape.code_cols + col / 2)];
  return {static_cast<std::uint8_t>(byte >> (4 * (col % 2)) & 0xF)};
}

}  // namespace nibble::selftest
