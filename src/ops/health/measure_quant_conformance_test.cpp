// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize_testing.h"
#include "quant/format_names.h"

namespace nibble {
namespace {

using testing::Quantized;
using testing::TestMatrix;

/// Normal numbers of very different sizes from row to row, so that some blocks flush and some saturate.
TestMatrix matrix(std::int64_t rows, std::int64_t cols, bool f32) {
  TestMatrix x(rows, cols, f32, 3);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      x.set(r, c,
            r % 5 == 4 ? 0.0f
                       : static_cast<float>(testing::normal(3, r * cols + c) * std::pow(2.0, -4 * (r % 4))));
  return x;
}

QuantStats measure(Stream& stream, const TestMatrix& x, const Quantized& q, const QuantSpec& spec) {
  QuantStats stats;
  measure_quant(stream, testing::measuring_of(x.view(), q, spec, stats));
  return stats;
}

/// Counts exactly, sums to `relative` of the largest of their kind.
void expect_same(const QuantStats& a, const QuantStats& b, double relative, const std::string& what) {
  for (auto count : {&QuantStats::count, &QuantStats::nonzero, &QuantStats::flushed, &QuantStats::saturated,
                     &QuantStats::blocks, &QuantStats::zero_blocks, &QuantStats::scale_max,
                     &QuantStats::scale_subnormal, &QuantStats::scale_zero})
    EXPECT_EQ(a.*count, b.*count) << what;
  EXPECT_TRUE(std::equal(a.scale_histogram, a.scale_histogram + 16, b.scale_histogram)) << what;
  EXPECT_TRUE(std::equal(a.code_histogram, a.code_histogram + 16, b.code_histogram)) << what;
  for (auto extreme : {&QuantStats::amax, &QuantStats::amin, &QuantStats::block_range,
                       &QuantStats::scale_inv_min, &QuantStats::scale_inv_max})
    EXPECT_EQ(a.*extreme, b.*extreme) << what;
  for (auto sum : {&QuantStats::sum_x2, &QuantStats::sum_e2, &QuantStats::sum_xq, &QuantStats::sum_q2})
    EXPECT_NEAR(a.*sum, b.*sum, relative * a.sum_x2) << what;
  for (auto sum : {&QuantStats::sum_abs, &QuantStats::sum_e, &QuantStats::sum_x})
    EXPECT_NEAR(a.*sum, b.*sum, relative * a.sum_abs) << what;
}

TEST(Conformance, measure_quant) {
  HostDevice device;
  Stream ref(BackendKind::Ref, device, 1), one(BackendKind::Cpu, device, 1), two(BackendKind::Cpu, device, 2);
  std::vector<QuantSpec> specs;
  for (Format format :
       {Format::Nvfp4, Format::Mxfp4, Format::Mxfp8E4M3, Format::Mxfp8E5M2, Format::Fp8E4M3, Format::Bf16})
    specs.push_back({.format = format});
  for (const QuantSpec& spec : testing::uncommon_specs())
    if (spec.rotation == 0) specs.push_back(spec);
  for (const QuantSpec& spec : specs)
    for (bool f32 : {false, true})
      for (auto [rows, cols] : {std::pair{1, 16}, {33, 48}, {70, 37}, {150, 20}}) {
        const TestMatrix x = matrix(rows, cols, f32);
        const Quantized q = testing::quantize_all(ref, x.view(), {.spec = spec});
        const std::string what = fmt::format("{} [{}, {}] f32={}", arithmetic_name(spec), rows, cols, f32);
        const QuantStats expected = measure(ref, x, q, spec), got = measure(one, x, q, spec);
        expect_same(expected, got, 1e-12, what);
        expect_same(got, measure(two, x, q, spec), 0, what + " threads=2");
      }
}

}  // namespace
}  // namespace nibble
