// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/swizzle_scales.h"

#include <gtest/gtest.h>

#include <utility>

#include "ops/quantize/quantize_device_testing.h"
#include "quant/swizzle.h"

namespace nibble {
namespace {

std::vector<std::uint8_t> swizzled_on(Stream& stream, const std::vector<std::uint8_t>& scales,
                                      std::int64_t rows, std::int64_t cols, std::int64_t gap) {
  const HostBuffer source = testing::shared_copy(stream.device(), scales.data(), scales.size());
  const std::int64_t size = swizzled_size(rows, cols);
  const std::vector<std::uint8_t> dirty(static_cast<std::size_t>(size), 0x5A);
  const HostBuffer out = testing::shared_copy(stream.device(), dirty.data(), dirty.size());
  Layout layout = Layout::contiguous(rows, cols);
  layout.stride[0] = cols + gap;
  swizzle_scales(stream, {.scales_RB = {source.as<std::uint8_t>(), layout},
                          .out = View<std::uint8_t>(out.as<std::uint8_t>(), size)});
  stream.device().synchronize();
  return {out.as<std::uint8_t>(), out.as<std::uint8_t>() + size};
}

TEST(Conformance, swizzle_scales) {
  HostDevice host;
  Stream ref(BackendKind::Ref, host, 1), cpu(BackendKind::Cpu, host, 2);
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {128, 4}, {130, 5}, {260, 32}, {33, 7}}) {
    for (const std::int64_t gap : {0, 3}) {
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(rows * (cols + gap)));
      for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(1 + i % 255);
      const std::vector<std::uint8_t> expected = swizzled_on(ref, scales, rows, cols, gap);
      std::int64_t filled = 0;
      for (std::uint8_t byte : expected) filled += byte != 0 ? 1 : 0;
      EXPECT_EQ(filled, rows * cols) << "the padding is zero";
      EXPECT_EQ(expected[static_cast<std::size_t>(swizzle_offset(rows - 1, cols - 1, cols))],
                scales[static_cast<std::size_t>((rows - 1) * (cols + gap) + cols - 1)]);
      EXPECT_EQ(expected, swizzled_on(cpu, scales, rows, cols, gap));
      if (conformance::gpu() == nullptr) continue;
      Stream gpu(BackendKind::Cuda, *conformance::gpu(), 1);
      EXPECT_EQ(expected, swizzled_on(gpu, scales, rows, cols, gap));
    }
  }
}

}  // namespace
}  // namespace nibble
