// SPDX-License-Identifier: Apache-2.0
#include "quant/format.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "quant/amax.h"
#include "quant/swizzle.h"

namespace nibble {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Format kAll[] = {Format::Fp32,      Format::Bf16,         Format::Nvfp4,
                           Format::Mxfp4,     Format::Mxfp8E4M3,    Format::Mxfp8E5M2,
                           Format::Fp8E4M3,   Format::Fp8E5M2,      Format::Mxfp6E2M3,
                           Format::Mxfp6E3M2, Format::Fp8BlockE4M3, Format::Fp8BlockFp32E4M3};

TEST(FormatTable, NamesLeadBackToTheirFormats) {
  for (Format f : kAll) {
    EXPECT_EQ(info(f).format, f);
    EXPECT_EQ(format_from_name(info(f).name), f);
  }
}

TEST(FormatTable, AnUnknownNameIsAUsageErrorThatListsTheNames) {
  try {
    format_from_name("nvfp3");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(e.what()).find("mxfp8_e5m2"), std::string::npos) << e.what();
  }
}

TEST(FormatTable, BitsPerElementCountBlockScales) {
  EXPECT_EQ(bits_per_element(Format::Fp32), 32.0);
  EXPECT_EQ(bits_per_element(Format::Bf16), 16.0);
  EXPECT_EQ(bits_per_element(Format::Nvfp4), 4.5);
  EXPECT_EQ(bits_per_element(Format::Mxfp4), 4.25);
  EXPECT_EQ(bits_per_element(Format::Mxfp8E4M3), 8.25);
  EXPECT_EQ(bits_per_element(Format::Fp8E5M2), 8.0);
  EXPECT_EQ(bits_per_element(Format::Mxfp6E2M3), 6.25);
  EXPECT_EQ(bits_per_element(Format::Fp8BlockE4M3), 8.0625);
  EXPECT_EQ(bits_per_element(Format::Fp8BlockFp32E4M3), 8.25);
}

TEST(FormatTable, OnlyHighPrecisionFormatsAreNotQuantised) {
  for (Format f : kAll) EXPECT_EQ(is_quantized(f), info(f).element_bits < 16);
}

TEST(Amax, DetectCarriesANanOutInAnyOrderAndTheSourcesRuleDropsIt) {
  for (float other : {0.0f, -3.0f, kInf}) {
    const float a = std::abs(other);
    EXPECT_TRUE(is_nan(amax_step(amax_step(0, kNan, NonFinite::Detect), other, NonFinite::Detect)));
    EXPECT_TRUE(is_nan(amax_step(amax_step(0, other, NonFinite::Detect), -kNan, NonFinite::Detect)));
    EXPECT_EQ(amax_step(amax_step(0, kNan, NonFinite::AsTe), other, NonFinite::AsTe), a);
    EXPECT_EQ(amax_step(amax_step(0, other, NonFinite::AsTe), kNan, NonFinite::AsTe), a);
  }
  for (NonFinite policy : {NonFinite::Detect, NonFinite::AsTe}) {
    EXPECT_EQ(amax_step(1.0f, -kInf, policy), kInf);
    EXPECT_EQ(amax_step(0.0f, -1e-45f, policy), 1e-45f);
    EXPECT_EQ(float_bits(amax_step(0.0f, -0.0f, policy)), 0u);
  }
}

TEST(Swizzle, IsABijectionIntoThePaddedArea) {
  for (const auto& [rows, columns] : {std::pair{128, 4}, {160, 10}, {1, 1}, {257, 7}}) {
    std::set<std::int64_t> seen;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) seen.insert(swizzle_offset(r, c, columns));
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(rows * columns));
    EXPECT_LT(*seen.rbegin(), swizzle_padded_rows(rows) * swizzle_padded_columns(columns));
    EXPECT_EQ(*seen.begin(), 0);
  }
}

}  // namespace
}  // namespace nibble
