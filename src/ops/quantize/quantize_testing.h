// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/device.h"
#include "numeric/random_key.h"
#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize.h"
#include "quant/nvfp4.h"

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
  std::vector<float> row_amax;  ///< of row-scaled specs
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
  if (o.spec.tensor_scaling == TensorScaling::Row) {
    out.row_amax.assign(static_cast<std::size_t>(s.rows), -1);
    q.row_amax = View<float>(out.row_amax.data(), s.rows);
  }
  quantize(stream, q);
  return out;
}

/// How the codes of `q` decode into `out`.
inline Dequantize decoding_of(const Quantized& q, const QuantSpec& spec, std::vector<float>& out) {
  const QuantizedShape& s = q.shape;
  out.resize(static_cast<std::size_t>(s.rows * s.cols));
  Dequantize d{.format = spec.format, .amax = &q.amax, .scale = &q.scale};
  d.codes = View<const std::uint8_t>(q.codes.data(), s.rows, s.code_cols);
  if (s.scale_cols != 0) d.scales = View<const std::uint8_t>(q.scales.data(), s.rows, s.scale_cols);
  if (!q.row_amax.empty()) d.row_amax = View<const float>(q.row_amax.data(), s.rows);
  d.scale_bound = spec.scale_bound;
  d.amax_factor = amax_factor(spec);
  d.out_RC = View<float>(out.data(), s.rows, s.cols);
  return d;
}

/// The quantised matrix against what was quantised, rotated already where the spec rotates.
inline MeasureQuant measuring_of(const ConstRealView& x, const Quantized& q, const QuantSpec& spec,
                                 QuantStats& out) {
  const QuantizedShape& s = q.shape;
  MeasureQuant m{.x_RC = x, .spec = spec, .amax = &q.amax, .scale = &q.scale, .out = &out};
  m.values = View<const bf16>(reinterpret_cast<const bf16*>(q.values.data()), s.rows, s.cols);
  if (s.code_cols != 0) m.codes = View<const std::uint8_t>(q.codes.data(), s.rows, s.code_cols);
  if (s.scale_cols != 0) m.scales = View<const std::uint8_t>(q.scales.data(), s.rows, s.scale_cols);
  if (!q.row_amax.empty()) m.row_amax = View<const float>(q.row_amax.data(), s.rows);
  return m;
}

/// The options that only the general code path knows, each with what it may be combined with.
inline std::vector<QuantSpec> uncommon_specs() {
  std::vector<QuantSpec> specs;
  const auto add = [&](QuantSpec spec, bool square = false, bool random = false) {
    specs.push_back(spec);
    spec.rotation = 16;
    specs.push_back(spec);
    spec.rotation = 0;
    if (square) {
      spec.tile = Tile::Square;
      specs.push_back(spec);
    }
    if (!random) return;
    if (spec.four_over_six != FourOverSix::Off) spec.tile = Tile::Row;
    spec.rounding = Rounding::Stochastic;
    specs.push_back(spec);
  };
  for (Profile p : {Profile::Exact, Profile::TorchAo, Profile::ModelOpt, Profile::Ct}) {
    add({.format = Format::Nvfp4, .profile = p}, true, p == Profile::Exact);
  }
  add({.format = Format::Nvfp4, .rounding = Rounding::NearestAway}, true);
  add({.format = Format::Mxfp4, .rounding = Rounding::NearestAway});
  for (FourOverSix f : {FourOverSix::Mae, FourOverSix::Mse}) {
    for (std::uint16_t bound : {448, 256}) {
      add({.format = Format::Nvfp4, .four_over_six = f, .scale_bound = bound}, true, true);
    }
  }
  add({.format = Format::Nvfp4, .tensor_scaling = TensorScaling::Row}, false, true);
  add({.format = Format::Nvfp4, .scale_bound = 256}, true, true);
  add({.format = Format::Nvfp4, .headroom = true}, true, true);
  for (MxScaleRule rule : {MxScaleRule::Floor, MxScaleRule::Even, MxScaleRule::Ceil, MxScaleRule::Round}) {
    add({.format = Format::Mxfp4, .scale_rule = rule}, false, true);
    add({.format = Format::Mxfp8E4M3, .scale_rule = rule});
    add({.format = Format::Mxfp6E2M3, .scale_rule = rule});
  }
  add({.format = Format::Mxfp4, .scale_rule = MxScaleRule::ThreeQuarters}, false, true);
  add({.format = Format::Mxfp8E5M2, .scale_rule = MxScaleRule::Floor});
  add({.format = Format::Mxfp6E2M3});
  add({.format = Format::Mxfp6E3M2});
  for (std::uint16_t group : {16, 64, 128}) {
    add({.format = Format::Nvfp4, .scale_bound = 256, .eden_group = group});
    specs.push_back({.format = Format::Nvfp4,
                     .rotation = group,
                     .signs = RotationSigns::Redrawn,
                     .scale_bound = 256,
                     .eden_group = group});
  }
  for (std::uint8_t bits : {2, 5, 16}) {
    add({.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .random_bits = bits}, true);
    add({.format = Format::Mxfp4, .rounding = Rounding::Stochastic, .random_bits = bits});
  }
  for (std::uint16_t size : {2, 4, 8, 16, 32, 64, 128}) {
    for (RotationSigns signs : {RotationSigns::Fixed, RotationSigns::Redrawn, RotationSigns::None}) {
      if (size == 16 && signs == RotationSigns::Fixed) continue;
      specs.push_back({.format = Format::Nvfp4, .rotation = size, .signs = signs});
      specs.push_back(
          {.format = Format::Mxfp4, .rounding = Rounding::Stochastic, .rotation = size, .signs = signs});
    }
    specs.push_back({.format = Format::Nvfp4, .tile = Tile::Square, .rotation = size});
    specs.push_back({.format = Format::Mxfp8E4M3, .rotation = size});
    specs.push_back({.format = Format::Bf16, .rotation = size});
  }
  add({.format = Format::Fp8BlockE4M3}, true);
  add({.format = Format::Fp8BlockFp32E4M3}, true);
  return specs;
}

}  // namespace nibble::testing
