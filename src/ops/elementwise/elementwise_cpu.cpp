// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// Calls f(t, buffer) for every row, with room for `rows` rows of n numbers.
template <class F>
void for_rows(Stream& stream, std::int64_t T, std::int64_t n, std::int64_t rows, F&& f) {
  for_tiles(stream, T, kTileRows, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(rows * n));
    for (std::int64_t t = begin; t < end; ++t) f(t, buffer.data());
  });
}

/// The same where row(t, out, buffer) computes one row of y, with room for `rows` more.
template <class F>
void write_rows(Stream& stream, const RealView& y, float* amax, std::int64_t rows, F&& row) {
  const std::int64_t T = y.size(0), n = y.size(1);
  AmaxPartials most(stream, T, amax);
  for_rows(stream, T, n, rows + 1, [&](std::int64_t t, float* buffer) {
    float* out = begin_row(y, t, buffer + rows * n);
    row(t, out, buffer);
    most.note(t / kTileRows, out, n);
    finish_row(y, t, out);
  });
  most.finish(y.dtype());
}

}  // namespace

void run(Stream& stream, const Add& a) {
  const std::int64_t D = a.x_TD.size(1);
  for_rows(stream, a.x_TD.size(0), D, 2, [&](std::int64_t t, float* buffer) {
    // The FP32 row of x is its own memory and is added to in place; a BF16 row is widened, added to, rounded.
    float* x = begin_row(a.x_TD, t, buffer);
    read_row(a.x_TD, t, x);
    NIBBLE_SIMD_CALL(add_to, x, read_row(a.y_TD, t, buffer + D), D);
    finish_row(a.x_TD, t, x);
  });
}

void run(Stream& stream, const Cast& c) {
  for_rows(stream, c.in_TD.size(0), c.in_TD.size(1), 1, [&](std::int64_t t, float* buffer) {
    if (c.out_TD.dtype() == DType::BF16) {
      finish_row(c.out_TD, t, read_row(c.in_TD, t, buffer));
      return;
    }
    float* out = begin_row(c.out_TD, t, nullptr);
    const float* in = read_row(c.in_TD, t, out);
    if (in != out) std::copy(in, in + c.in_TD.size(1), out);
  });
}

void run(Stream& stream, const SwiGlu& s) {
  const std::int64_t F = s.y_TF.size(1);
  write_rows(stream, s.y_TF, s.amax, 2, [&](std::int64_t t, float* y, float* buffer) {
    const float* gate_up = read_row(s.gate_up_T2F, t, buffer);
    NIBBLE_SIMD_CALL(swiglu_row, gate_up, gate_up + F, y, F);
  });
}

void run(Stream& stream, const SwiGluBackward& s) {
  const std::int64_t F = s.dy_TF.size(1);
  write_rows(stream, s.dgate_up_T2F, s.amax, 2, [&](std::int64_t t, float* d, float* buffer) {
    const float* gate_up = read_row(s.gate_up_T2F, t, buffer);
    const float* dy = read_row(s.dy_TF, t, buffer + 2 * F);
    NIBBLE_SIMD_CALL(swiglu_row_backward, gate_up, gate_up + F, dy, d, d + F, F);
  });
}

void run(Stream& stream, const SquaredRelu& s) {
  const std::int64_t F = s.x_TF.size(1);
  write_rows(stream, s.y_TF, s.amax, 1, [&](std::int64_t t, float* y, float* buffer) {
    NIBBLE_SIMD_CALL(squared_relu_row, read_row(s.x_TF, t, buffer), y, F);
  });
}

void run(Stream& stream, const SquaredReluBackward& s) {
  const std::int64_t F = s.y_TF.size(1);
  const bool is_bf16 = s.y_TF.dtype() == DType::BF16;
  write_rows(stream, s.dx_TF, s.amax, 2, [&](std::int64_t t, float* dx, float* buffer) {
    const float* y = read_row(s.y_TF, t, buffer);
    const float* dy = read_row(s.dy_TF, t, buffer + F);
    NIBBLE_SIMD_CALL(squared_relu_row_backward, y, is_bf16, dy, dx, F);
  });
}

void run(Stream& stream, const ColumnSum& c) {
  const std::int64_t T = c.x_TN.size(0), N = c.x_TN.size(1);
  ColumnPartials sum(stream, T, N);
  for_tiles(stream, T, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(N));
    float* partial = sum.begin(tile);
    for (std::int64_t t = begin; t < end; ++t)
      NIBBLE_SIMD_CALL(add_to, partial, read_row(c.x_TN, t, buffer.data()), N);
  });
  sum.add_to(c.sum_N);
}

}  // namespace nibble::cpu
