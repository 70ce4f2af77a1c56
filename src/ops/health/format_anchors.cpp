// SPDX-License-Identifier: Apache-2.0
#include "ops/health/format_anchors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "numeric/bf16.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/rotate.h"
#include "quant/format_names.h"
#include "quant/hadamard.h"

namespace nibble {
namespace {

double uniform(std::uint64_t seed, std::int64_t i) {
  return initial_uniform(seed, 1, static_cast<std::uint64_t>(i));
}
double normal(std::uint64_t seed, std::int64_t i) {
  return initial_normal(seed, 2, static_cast<std::uint64_t>(i));
}
std::int64_t index(std::int64_t r, std::int64_t c) { return r * kAnchorCols + c; }

double gaussian(std::int64_t r, std::int64_t c) { return normal(20, index(r, c)); }

double laplace(std::int64_t r, std::int64_t c) {
  const double u = uniform(21, index(r, c)) - 0.5;
  return (u < 0 ? 1 : -1) * std::log1p(-2 * std::fabs(u));
}

double flat(std::int64_t r, std::int64_t c) { return 2 * uniform(25, index(r, c)) - 1; }

/// A normal number over the root of a chi-square one of four degrees of freedom, itself the sum of two
/// exponential ones.
double student_t4(std::int64_t r, std::int64_t c) {
  const std::int64_t i = index(r, c);
  const double chi2 = -2 * std::log(uniform(22, i)) - 2 * std::log(uniform(23, i));
  return normal(24, i) / std::sqrt(chi2 / 4);
}

double loud_channels(std::int64_t r, std::int64_t c) {
  return gaussian(r, c) * (c % 256 == 37 + c / 256 * 29 % 200 ? 64 : 1);
}

double log_normal_rows(std::int64_t r, std::int64_t c) {
  return gaussian(r, c) * std::exp(1.5 * normal(26, r)) * 1e-6;
}

constexpr std::array<AnchorDistribution, kAnchorDistributions> kDistributions = {{
    {"Gaussian", gaussian},
    {"Laplace", laplace},
    {"uniform", flat},
    {"Student t4", student_t4},
    {"channels x64", loud_channels},
    {"log-normal rows", log_normal_rows},
}};

QuantSpec nvfp4(Tile tile = Tile::Row, Rounding rounding = Rounding::NearestEven) {
  return {.format = Format::Nvfp4, .tile = tile, .rounding = rounding};
}
QuantSpec chosen(FourOverSix by, std::uint16_t bound, QuantSpec spec = nvfp4()) {
  spec.four_over_six = by;
  spec.scale_bound = bound;
  return spec;
}
QuantSpec with_headroom(QuantSpec spec) {
  spec.headroom = true;
  return spec;
}
/// Without its rotation, which a Gaussian does not need.
QuantSpec eden(std::uint16_t group = 16) {
  return {.format = Format::Nvfp4, .scale_bound = 256, .eden_group = group};
}
QuantSpec redrawn128(QuantSpec spec) {
  spec.rotation = 128;
  spec.signs = RotationSigns::Redrawn;
  return spec;
}
QuantSpec mx(Format format, MxScaleRule rule, Rounding rounding = Rounding::NearestEven) {
  return {.format = format, .rounding = rounding, .scale_rule = rule};
}

std::vector<FormatAnchor> nvfp4_anchors() {
  QuantSpec rotated = nvfp4(), bound = nvfp4(), away = nvfp4();
  rotated.rotation = 16;
  bound.scale_bound = 256;
  away.rounding = Rounding::NearestAway;
  const double plain[6] = {9.05e-3, 8.61e-3, 1.03e-2, 8.44e-3, 3.32e-3, 9.14e-3};
  std::vector<FormatAnchor> all = {
      {"nvfp4 1x16", nvfp4(), {9.05e-3, 8.61e-3, 1.03e-2, 8.44e-3, 3.32e-3, 9.14e-3}},
      {"nvfp4 1x16, bound 256", bound, {9.05e-3, 8.59e-3, 1.03e-2, 8.43e-3, 3.31e-3, 9.11e-3}},
      {"nvfp4 1x16, ties away", away, {9.05e-3, 8.61e-3, 1.03e-2, 8.44e-3, 3.32e-3, 9.14e-3}},
      {"nvfp4 16x16", nvfp4(Tile::Square), {1.24e-2, 1.68e-2, 1.21e-2, 2.28e-2, 1.26e-2, 2.04e-2}},
      {"nvfp4 4/6 MSE, bound 256",
       chosen(FourOverSix::Mse, 256),
       {7.56e-3, 7.59e-3, 7.62e-3, 7.55e-3, 2.93e-3, 7.62e-3}},
      {"nvfp4 4/6 MAE, bound 256",
       chosen(FourOverSix::Mae, 256),
       {7.80e-3, 7.82e-3, 7.83e-3, 7.74e-3, 2.94e-3, 7.83e-3}},
      {"nvfp4 4/6 MSE, bound 448",
       chosen(FourOverSix::Mse, 448),
       {7.56e-3, 7.61e-3, 1.00e-2, 7.56e-3, 2.95e-3, 7.64e-3}},
      {"nvfp4 SR, 24 bits",
       nvfp4(Tile::Row, Rounding::StochasticExact),
       {1.88e-2, 1.83e-2, 2.11e-2, 1.80e-2, 1.30e-2, 1.84e-2}},
      {"nvfp4 SR, 8 bits",
       nvfp4(Tile::Row, Rounding::Stochastic),
       {1.89e-2, 1.83e-2, 2.11e-2, 1.80e-2, 1.29e-2, 1.92e-2}},
      {"nvfp4 SR, headroom 17/16",
       with_headroom(nvfp4(Tile::Row, Rounding::StochasticExact)),
       {2.36e-2, 2.48e-2, 2.59e-2, 2.53e-2, 2.69e-2, 2.38e-2}},
      {"nvfp4 after RHT-16", rotated, {9.06e-3, 9.24e-3, 8.94e-3, 9.33e-3, 8.29e-3, 9.03e-3}},
      {"nvfp4 MS-EDEN", eden(), {9.31e-3, 0, 0, 0, 0, 0}},
      {"nvfp4 MS-EDEN, groups of 128", eden(128), {9.74e-3, 0, 0, 0, 0, 0}}};
  for (Profile p : {Profile::Te213, Profile::Exact, Profile::TorchAo, Profile::ModelOpt, Profile::Ct}) {
    // Orders of operations move ties, which leave the error as it is.
    FormatAnchor a{fmt::format("nvfp4 1x16, {}", profile_name(p)), nvfp4(), {}};
    a.spec.profile = p;
    std::copy(plain, plain + 6, a.nmse);
    all.push_back(a);
  }
  return all;
}

std::vector<FormatAnchor> mx_anchors() {
  using R = MxScaleRule;
  const Format f4 = Format::Mxfp4, e4 = Format::Mxfp8E4M3, e5 = Format::Mxfp8E5M2;
  const Format e23 = Format::Mxfp6E2M3, e32 = Format::Mxfp6E3M2;
  const Rounding sr = Rounding::StochasticExact;
  return {
      {"mxfp4 rounded up", mx(f4, R::RoundUp), {1.33e-2, 1.74e-2, 9.78e-3, 1.93e-2, 1.55e-2, 1.36e-2}},
      {"mxfp4 rounded up, ties away",
       mx(f4, R::RoundUp, Rounding::NearestAway),
       {1.33e-2, 1.74e-2, 9.78e-3, 1.93e-2, 1.55e-2, 1.36e-2}},
      {"mxfp4 floor", mx(f4, R::Floor), {1.32e-2, 1.60e-2, 1.98e-2, 1.72e-2, 2.08e-2, 1.34e-2}},
      {"mxfp4 even", mx(f4, R::Even), {1.25e-2, 1.54e-2, 9.77e-3, 1.67e-2, 1.52e-2, 1.27e-2}},
      {"mxfp4 ceil", mx(f4, R::Ceil), {2.08e-2, 2.88e-2, 9.78e-3, 3.28e-2, 1.66e-2, 2.01e-2}},
      {"mxfp4 round", mx(f4, R::Round), {1.48e-2, 1.77e-2, 2.08e-2, 1.89e-2, 2.66e-2, 1.48e-2}},
      {"mxfp4 3/4", mx(f4, R::ThreeQuarters), {1.39e-2, 1.76e-2, 1.22e-2, 1.94e-2, 1.53e-2, 1.37e-2}},
      {"mxfp4 rounded up, SR",
       mx(f4, R::RoundUp, sr),
       {2.71e-2, 3.53e-2, 1.95e-2, 3.92e-2, 4.86e-2, 2.80e-2}},
      {"mxfp4 3/4, SR", mx(f4, R::ThreeQuarters, sr), {2.82e-2, 3.57e-2, 2.45e-2, 3.93e-2, 4.84e-2, 2.82e-2}},
      {"mxfp8 e4m3 rounded up", mx(e4, R::RoundUp), {7.04e-4, 7.07e-4, 5.62e-4, 7.06e-4, 7.20e-4, 7.03e-4}},
      {"mxfp8 e4m3 floor", mx(e4, R::Floor), {8.59e-4, 9.88e-4, 2.21e-3, 1.03e-3, 1.58e-3, 8.81e-4}},
      {"mxfp8 e5m2 rounded up", mx(e5, R::RoundUp), {2.79e-3, 2.78e-3, 2.24e-3, 2.79e-3, 2.75e-3, 2.83e-3}},
      {"mxfp8 e5m2 floor", mx(e5, R::Floor), {2.91e-3, 3.00e-3, 3.54e-3, 3.03e-3, 3.42e-3, 2.95e-3}},
      {"mxfp6 e2m3 rounded up", mx(e23, R::RoundUp), {8.02e-4, 9.51e-4, 6.08e-4, 1.02e-3, 1.90e-3, 8.00e-4}},
      {"mxfp6 e2m3 floor", mx(e23, R::Floor), {8.05e-4, 9.39e-4, 7.23e-4, 1.00e-3, 1.85e-3, 8.00e-4}},
      // The source gives E5M2's figures for E3M2 as near enough; only the first and fifth are its own.
      {"mxfp6 e3m2 rounded up", mx(e32, R::RoundUp), {2.79e-3, 0, 0, 0, 2.77e-3, 0}},
      {"mxfp6 e3m2 floor", mx(e32, R::Floor), {2.91e-3, 0, 0, 0, 3.43e-3, 0}}};
}

std::vector<FormatAnchor> fp8_anchors() {
  const Format pow2 = Format::Fp8BlockE4M3, fp32 = Format::Fp8BlockFp32E4M3;
  return {{"fp8 e4m3 a tensor",
           {.format = Format::Fp8E4M3},
           {7.00e-4, 7.01e-4, 6.51e-4, 7.01e-4, 7.01e-4, 7.09e-4}},
          {"fp8 e5m2 a tensor",
           {.format = Format::Fp8E5M2},
           {2.77e-3, 2.78e-3, 2.60e-3, 2.78e-3, 2.76e-3, 2.78e-3}},
          {"fp8 e4m3 1x128, powers of two",
           {.format = pow2},
           {7.04e-4, 7.07e-4, 5.62e-4, 7.06e-4, 7.20e-4, 7.03e-4}},
          // No anchor for the loud columns: FP32 scales make a block's maximum exact, so the error depends on
          // whether two of them share a block, which here they never do.
          {"fp8 e4m3 1x128, FP32 scales", {.format = fp32}, {6.62e-4, 6.16e-4, 6.37e-4, 5.76e-4, 0, 6.63e-4}},
          {"fp8 e4m3 128x128, powers of two",
           {.format = pow2, .tile = Tile::Square},
           {7.04e-4, 7.07e-4, 5.62e-4, 7.06e-4, 7.20e-4, 7.03e-4}},
          {"fp8 e4m3 128x128, FP32 scales",
           {.format = fp32, .tile = Tile::Square},
           {7.00e-4, 7.00e-4, 6.51e-4, 6.93e-4, 6.84e-4, 6.84e-4}}};
}

/// A quantised copy in scratch memory.
struct Copy {
  View<bf16> values;
  View<std::uint8_t> codes, scales;
  View<float> row_amax, amax, scale;
};

Copy quantized_copy(Stream& stream, ConstRealView x, const QuantSpec& spec, const RandomKey& key) {
  Arena& scratch = stream.scratch();
  const QuantizedShape s = quantized_shape(spec, x.size(0), x.size(1), false);
  Copy c;
  c.values = scratch.take<bf16>(s.rows, s.cols);
  c.codes = scratch.take<std::uint8_t>(s.rows, s.code_cols);
  if (s.scale_cols != 0) c.scales = scratch.take<std::uint8_t>(s.rows, s.scale_cols);
  if (spec.tensor_scaling == TensorScaling::Row) c.row_amax = scratch.take<float>(s.rows);
  c.amax = scratch.take<float>(1);
  c.scale = scratch.take<float>(1);
  quantize(stream, {.x_RC = x,
                    .spec = spec,
                    .random = key,
                    .amax = c.amax.data(),
                    .scale = c.scale.data(),
                    .values = c.values,
                    .codes = c.codes,
                    .scales = c.scales,
                    .row_amax = c.row_amax});
  return c;
}

}  // namespace

std::span<const AnchorDistribution> anchor_distributions() { return kDistributions; }

const std::vector<FormatAnchor>& format_anchors() {
  static const std::vector<FormatAnchor> all = [] {
    std::vector<FormatAnchor> rows = nvfp4_anchors();
    for (const std::vector<FormatAnchor>& more : {mx_anchors(), fp8_anchors()})
      rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }();
  return all;
}

double anchor_tolerance_db(int distribution, Tile tile) {
  const bool square = tile == Tile::Square;
  if (distribution >= 4) return square ? 1.5 : 0.5;
  return distribution == 3 && square ? 0.1 : 0.05;
}

const std::vector<GaussianAnchor>& gaussian_anchors() {
  const Rounding sr = Rounding::StochasticExact;
  const Format f4 = Format::Mxfp4;
  const QuantSpec six = chosen(FourOverSix::Mse, 256), tile = nvfp4(Tile::Square);
  static const std::vector<GaussianAnchor> all = {
      {"nvfp4 1x16", nvfp4(), 9.05e-3, 9.0e-3, -0.0045, 0.068},
      {"nvfp4 1x16, 4/6", six, 7.56e-3, 7.6e-3, -0.0035, 0.081},
      {"nvfp4 16x16", tile, 12.40e-3, 12.4e-3, -0.0088, 0.101},
      {"nvfp4 16x16, 4/6", chosen(FourOverSix::Mse, 256, tile), 12.38e-3, 12.4e-3, -0.0089, 0.102},
      {"nvfp4 1x16 SR, headroom", with_headroom(nvfp4(Tile::Row, sr)), 23.6e-3, 23.5e-3, -0.0001, 0.072},
      {"nvfp4 1x16 SR", nvfp4(Tile::Row, sr), 18.9e-3, 0, -0.0034, 0.068},
      {"nvfp4 1x16 SR, headroom, 4/6", with_headroom(chosen(FourOverSix::Mse, 256, nvfp4(Tile::Row, sr))),
       17.5e-3, 17.5e-3, 0.0071, 0.088},
      {"nvfp4 1x16 MS-EDEN", eden(), 9.31e-3, 9.4e-3, 0, 0},
      {"mxfp4 rounded up", mx(f4, MxScaleRule::RoundUp), 13.32e-3, 0, -0.0099, 0.107},
      {"mxfp4 floor", mx(f4, MxScaleRule::Floor), 13.22e-3, 0, -0.0196, 0.088},
      {"mxfp4 rounded up, SR", mx(f4, MxScaleRule::RoundUp, sr), 27.1e-3, 0, 0, 0},
      {"mxfp4 3/4, SR", mx(f4, MxScaleRule::ThreeQuarters, sr), 28.2e-3, 0, 0, 0}};
  return all;
}

const std::vector<UnbiasednessAnchor>& unbiasedness_anchors() {
  const QuantSpec sr = nvfp4(Tile::Row, Rounding::StochasticExact);
  static const std::vector<UnbiasednessAnchor> all = {
      {"nvfp4 SR, headroom", with_headroom(sr), {2.3e-2, 1.5e-3, 9.2e-5, 2.3e-5}},
      {"nvfp4 SR", sr, {1.9e-2, 1.3e-3, 1.8e-4, 1.2e-4}},
      {"nvfp4 SR, headroom, 4/6",
       with_headroom(chosen(FourOverSix::Mse, 256, sr)),
       {1.8e-2, 1.8e-3, 7.8e-4, 7.3e-4}},
      {"nvfp4 nearest", nvfp4(), {9.0e-3, 9.0e-3, 9.0e-3, 9.0e-3}},
      {"RHT-128, MS-EDEN", redrawn128(eden()), {9.5e-3, 6.0e-4, 3.7e-5, 9.7e-6}},
      {"RHT-128, nearest", redrawn128(nvfp4()), {9.1e-3, 5.8e-4, 5.6e-5, 2.9e-5}}};
  return all;
}

QuantStats measure_format(Stream& stream, ConstRealView x, const QuantSpec& spec, const RandomKey& key) {
  const ArenaScope scope(stream.scratch());
  const Copy c = quantized_copy(stream, x, spec, key);
  ConstRealView before = x;
  if (spec.rotation != 0) {
    const View<bf16> rotated = stream.scratch().take<bf16>(c.values.size(0), c.values.size(1));
    rotate(stream, rotation_of(spec, x, false, key, rotated));
    before = View<const bf16>(rotated).slice(1, 0, x.size(1));
  }
  return measured_quant(stream, {.x_RC = before,
                                 .values = c.values,
                                 .codes = c.codes,
                                 .scales = c.scales,
                                 .spec = spec,
                                 .amax = c.amax.data(),
                                 .scale = c.scale.data(),
                                 .row_amax = c.row_amax});
}

namespace {

/// Adds a row of the result times `unit` to `mean`, turned back where it was rotated: the transform is its
/// own inverse, but for the signs, which come last on the way back.
void add_row(const bf16* values, std::int64_t cols, double unit, const QuantSpec& spec, const RandomKey& key,
             double* mean) {
  const SignBits signs = rotation_signs(spec.rotation, spec.signs, spec.sign_mask, key);
  const std::int64_t size = spec.rotation == 0 ? 1 : spec.rotation;
  for (std::int64_t j = 0; j < cols; j += size) {
    double x[kLargestRotation];
    for (std::int64_t k = 0; k < size; ++k) x[k] = values[j + k].value() * unit;
    if (spec.rotation != 0) hadamard(x, spec.rotation, SignBits{});
    for (std::int64_t k = 0; k < size; ++k) {
      const bool negative = spec.rotation != 0 && signs.negative(static_cast<int>(k));
      mean[j + k] += negative ? -x[k] : x[k];
    }
  }
}

}  // namespace

MeanError mean_error(Stream& stream, ConstRealView x, const QuantSpec& spec, int draws) {
  const std::int64_t cols = x.size(1), count = x.size(0) * cols;
  std::vector<double> mean(static_cast<std::size_t>(count));
  for (int k = 0; k < draws; ++k) {
    const ArenaScope scope(stream.scratch());
    const RandomKey key{.seed = 3, .step = static_cast<std::uint32_t>(k)};
    const Copy c = quantized_copy(stream, x, spec, key);
    const double unit =
        static_cast<double>(c.scale(0)) * gemm_inverse_range(spec.format, Format::Bf16) / draws;
    for (std::int64_t i = 0; i < x.size(0); ++i)
      add_row(&c.values(i, 0), cols, unit, spec, key, mean.data() + i * cols);
  }
  double xq = 0, x2 = 0, e2 = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double v = x.get(i / cols, i % cols), m = mean[static_cast<std::size_t>(i)];
    xq += v * m;
    x2 += v * v;
    e2 += (m - v) * (m - v);
  }
  return {e2 / x2, xq / x2 - 1};
}

}  // namespace nibble
