// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize_device_testing.h"
#include "quant/format_names.h"

/// The statistics on `cpu`, and on the GPU where there is one, of matrices wider and longer than one of its
/// tiles; counts exactly as `ref` has them, sums to the rounding of their order, and twice the same bits.
namespace nibble {
namespace {

using testing::Quantized;
using testing::TestMatrix;

/// x as it is quantised: the rows of a transposed view where `transpose` is set.
QuantStats measure_on(Stream& stream, const TestMatrix& x, const Quantized& q, const QuantSpec& spec,
                      bool transpose) {
  Device& device = stream.device();
  const testing::SharedMatrix source(device, x.view());
  const HostBuffer values = testing::shared_copy(device, q.values.data(), q.values.size());
  const HostBuffer codes = testing::shared_copy(device, q.codes.data(), q.codes.size());
  const HostBuffer scales = testing::shared_copy(device, q.scales.data(), q.scales.size());
  const HostBuffer row_amax = testing::shared_copy(device, q.row_amax.data(), q.row_amax.size());
  const float numbers[2] = {q.amax, q.scale};
  const HostBuffer both = testing::shared_copy(device, numbers, 2);
  MeasureQuant m{.x_RC = transpose ? source.view().transposed() : source.view(), .spec = spec};
  m.amax = both.as<float>();
  m.scale = both.as<float>() + 1;
  const QuantizedShape& s = q.shape;
  m.values = View<const bf16>(values.as<bf16>(), s.rows, s.cols);
  if (s.code_cols != 0) m.codes = View<const std::uint8_t>(codes.as<std::uint8_t>(), s.rows, s.code_cols);
  if (s.scale_cols != 0) m.scales = View<const std::uint8_t>(scales.as<std::uint8_t>(), s.rows, s.scale_cols);
  if (!q.row_amax.empty()) m.row_amax = View<const float>(row_amax.as<float>(), s.rows);
  return measured_quant(stream, m);
}

void expect_close(const QuantStats& a, const QuantStats& b, double relative, const std::string& what) {
  for (auto count : {&QuantStats::count, &QuantStats::nonzero, &QuantStats::flushed, &QuantStats::saturated,
                     &QuantStats::blocks, &QuantStats::zero_blocks, &QuantStats::scale_max,
                     &QuantStats::scale_subnormal, &QuantStats::scale_zero})
    EXPECT_EQ(a.*count, b.*count) << what;
  for (int bin = 0; bin < 16; ++bin) {
    EXPECT_EQ(a.scale_histogram[bin], b.scale_histogram[bin]) << what;
    EXPECT_EQ(a.code_histogram[bin], b.code_histogram[bin]) << what;
  }
  for (auto extreme : {&QuantStats::amax, &QuantStats::amin, &QuantStats::block_range,
                       &QuantStats::scale_inv_min, &QuantStats::scale_inv_max})
    EXPECT_EQ(a.*extreme, b.*extreme) << what;
  for (auto sum : {&QuantStats::sum_x2, &QuantStats::sum_e2, &QuantStats::sum_xq, &QuantStats::sum_q2})
    EXPECT_NEAR(a.*sum, b.*sum, relative * a.sum_x2) << what;
  for (auto sum : {&QuantStats::sum_abs, &QuantStats::sum_e, &QuantStats::sum_x})
    EXPECT_NEAR(a.*sum, b.*sum, relative * a.sum_abs) << what;
}

TEST(MeasureQuantConformance, StatisticsOfLargerMatricesAndOfTransposedViews) {
  HostDevice host;
  Stream ref(BackendKind::Ref, host, 1), cpu(BackendKind::Cpu, host, 2);
  std::vector<QuantSpec> specs = testing::uncommon_specs();
  for (const Format f : {Format::Bf16, Format::Nvfp4, Format::Mxfp4, Format::Mxfp8E4M3, Format::Mxfp8E5M2,
                         Format::Fp8E4M3, Format::Fp8E5M2})
    specs.push_back({.format = f});
  specs.push_back({.format = Format::Nvfp4, .tile = Tile::Square});
  std::uint64_t seed = 300;
  for (const QuantSpec& spec : specs) {
    if (spec.rotation != 0) continue;
    const bool transpose = ++seed % 2 == 0;
    TestMatrix x(seed % 3 == 0 ? 140 : 33, transpose ? 70 : 530, seed % 5 == 0, 3);
    for (std::int64_t i = 0; i < x.rows * x.cols; ++i) {
      const double size = i % 7 == 0 ? 0.0 : std::pow(2.0, -4.0 * static_cast<double>(i / x.cols % 5));
      x.set(i / x.cols, i % x.cols, static_cast<float>(testing::normal(seed, i) * size));
    }
    const Quantized q = testing::quantize_on(ref, x.view(), {.spec = spec, .transpose = transpose});
    const std::string what = fmt::format("{} [{}, {}]", arithmetic_name(spec), x.rows, x.cols);
    const QuantStats expected = measure_on(ref, x, q, spec, transpose);
    expect_close(expected, measure_on(cpu, x, q, spec, transpose), 1e-12, what + " on cpu");
    if (conformance::gpu() == nullptr) continue;
    Stream gpu(BackendKind::Cuda, *conformance::gpu(), 1);
    const QuantStats got = measure_on(gpu, x, q, spec, transpose);
    expect_close(expected, got, 1e-12, what + " on the GPU");
    expect_close(got, measure_on(gpu, x, q, spec, transpose), 0, what + " on the GPU, twice");
  }
}

}  // namespace
}  // namespace nibble
