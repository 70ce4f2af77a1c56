// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm.h"
#include "ops/norm/rms_norm_kernels.h"
#include "ops/rows.h"

namespace nibble::cpu {
namespace {

/// Rows that row(t, buffer) hands over, normalised. The buffer has room for two rows.
template <class F>
void norm_rows(Stream& stream, const View<const float>& w_D, const RealView& y_TD, const View<float>& rstd_T,
               float eps, float* amax, F&& row) {
  const std::int64_t T = y_TD.size(0), D = y_TD.size(1);
  AmaxPartials most(stream, T, amax);
  for_tiles(stream, T, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(3 * D));
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = row(t, buffer.data());
      float* y = begin_row(y_TD, t, buffer.data() + 2 * D);
      rstd_T(t) = NIBBLE_SIMD_CALL(norm_row, x, w_D.data(), y, D, eps);
      most.note(tile, y, D);
      finish_row(y_TD, t, y);
    }
  });
  most.finish(y_TD.dtype());
}

}  // namespace

void run(Stream& stream, const RmsNorm& n) {
  norm_rows(stream, n.w_D, n.y_TD, n.rstd_T, n.eps, n.amax,
            [&](std::int64_t t, float* buffer) { return read_row(n.x_TD, t, buffer); });
}

void run(Stream& stream, const AddRmsNorm& n) {
  const std::int64_t D = n.x_TD.size(1);
  norm_rows(stream, n.w_D, n.normed_TD, n.rstd_T, n.eps, n.amax, [&](std::int64_t t, float* buffer) {
    // The sum may be x's or y's own row, so it is made in the buffer.
    const float* x = read_row(n.x_TD, t, buffer);
    if (x != buffer) std::copy(x, x + D, buffer);
    NIBBLE_SIMD_CALL(add_to, buffer, read_row(n.y_TD, t, buffer + D), D);
    if (n.sum_TD.dtype() == DType::F32) {
      std::copy(buffer, buffer + D, begin_row(n.sum_TD, t, nullptr));
    } else {
      finish_row(n.sum_TD, t, buffer);
      read_row(n.sum_TD, t, buffer);  // as it was rounded
    }
    return static_cast<const float*>(buffer);
  });
}

void run(Stream& stream, const RmsNormBackward& n) {
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  ColumnPartials dw(stream, T, D);
  AmaxPartials most(stream, T, n.amax);
  for_tiles(stream, T, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(3 * D));
    float* dw_tile = dw.begin(tile);
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = read_row(n.x_TD, t, buffer.data());
      const float* dy = read_row(n.dy_TD, t, buffer.data() + D);
      float* dx = begin_row(n.dx_TD, t, buffer.data() + 2 * D);
      read_row(n.dx_TD, t, dx);  // widened there where it is BF16
      NIBBLE_SIMD_CALL(norm_row_backward, x, n.w_D.data(), dy, n.rstd_T(t), dx, dw_tile, D);
      finish_row(n.dx_TD, t, dx);
      if (!n.dx_copy_TD.empty()) write_row(n.dx_copy_TD, t, dx);
      most.note(tile, dx, D);
    }
  });
  dw.add_to(n.dw_D);
  most.finish(n.dx_copy_TD.empty() ? n.dx_TD.dtype() : n.dx_copy_TD.dtype());
}

void run(Stream& stream, const GatedRmsNorm& n) {
  const std::int64_t T = n.y_TD.size(0), D = n.y_TD.size(1), size = D / n.groups;
  AmaxPartials most(stream, T, n.amax);
  for_tiles(stream, T, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(4 * D));
    float* r = buffer.data() + 2 * D;
    for (std::int64_t t = begin; t < end; ++t) {
      const float* y = read_row(n.y_TD, t, buffer.data());
      const float* z = read_row(n.z_TD, t, buffer.data() + D);
      float* out = begin_row(n.out_TD, t, buffer.data() + 3 * D);
      NIBBLE_SIMD_CALL(gate_row, y, z, r, D);
      for (int group = 0; group < n.groups; ++group) {
        const std::int64_t d = group * size;
        n.rstd_TG(t, group) = NIBBLE_SIMD_CALL(norm_row, r + d, n.w_D.data() + d, out + d, size, n.eps);
      }
      most.note(tile, out, D);
      finish_row(n.out_TD, t, out);
    }
  });
  most.finish(n.out_TD.dtype());
}

void run(Stream& stream, const GatedRmsNormBackward& n) {
  const std::int64_t T = n.y_TD.size(0), D = n.y_TD.size(1), size = D / n.groups;
  ColumnPartials dw(stream, T, D);
  for_tiles(stream, T, kTileRows, [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(7 * D));
    float *r = buffer.data() + 3 * D, *dr = r + D;
    float* dw_tile = dw.begin(tile);
    for (std::int64_t t = begin; t < end; ++t) {
      const float* y = read_row(n.y_TD, t, buffer.data());
      const float* z = read_row(n.z_TD, t, buffer.data() + D);
      const float* dout = read_row(n.dout_TD, t, buffer.data() + 2 * D);
      NIBBLE_SIMD_CALL(gate_row, y, z, r, D);
      std::fill(dr, dr + D, 0.0f);
      for (int group = 0; group < n.groups; ++group) {
        const std::int64_t d = group * size;
        NIBBLE_SIMD_CALL(norm_row_backward, r + d, n.w_D.data() + d, dout + d, n.rstd_TG(t, group), dr + d,
                         dw_tile + d, size);
      }
      float* dy = begin_row(n.dy_TD, t, buffer.data() + 5 * D);
      float* dz = begin_row(n.dz_TD, t, buffer.data() + 6 * D);
      NIBBLE_SIMD_CALL(gate_row_backward, y, z, dr, dy, dz, D);
      finish_row(n.dy_TD, t, dy);
      finish_row(n.dz_TD, t, dz);
    }
  });
  dw.add_to(n.dw_D);
}

}  // namespace nibble::cpu
