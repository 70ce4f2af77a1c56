// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../../tests/support/golden_file.h"
#include "quant/amax.h"
#include "quant/fp8_tensor.h"
#include "quant/mxfp8.h"

namespace nibble {
namespace {

const testing::GoldenFile& golden() {
  static const testing::GoldenFile file(NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors");
  return file;
}

template <class Element>
void expect_current_scaling(const std::string& base, const std::string& variant, bool power_of_two) {
  const std::vector<float> x = golden().floats(base + "x");
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  const float value_for_inf = golden().tensor(base + "x").dtype == "BF16" ? kBf16Max : kFloatMax;
  const auto scale = Fp8Scale::from_amax<Element>(amax, value_for_inf, power_of_two);
  EXPECT_EQ(golden().floats(base + variant + ".scale_inv"), std::vector<float>{scale.decode})
      << base << variant;
  const auto data = golden().values<std::uint8_t>(base + variant + ".data");
  ASSERT_EQ(data.size(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(encode_fp8<Element>(x[i], scale).bits, data[i]) << base << variant << " " << i << " " << x[i];
  }
}

TEST(GoldenFp8, CurrentScalingHasTheReferencesBytes) {
  const auto names = golden().children("fp8/");
  EXPECT_EQ(names.size(), 4u);
  for (const std::string& name : names) {
    const std::string base = "fp8/" + name + "/";
    expect_current_scaling<E4M3>(base, "cs.e4m3", false);
    expect_current_scaling<E4M3>(base, "cs.e4m3.p2", true);
    expect_current_scaling<E5M2>(base, "cs.e5m2", false);
  }
}

TEST(GoldenFp8, MxBlocksHaveTheDocumentedBytes) {
  for (const std::string& name : golden().children("fp8/")) {
    const std::string base = "fp8/" + name + "/";
    const std::vector<float> x = golden().floats(base + "x");
    const auto data = golden().values<std::uint8_t>(base + "mx.data");
    const auto scale = golden().values<std::uint8_t>(base + "mx.scale_e8m0");
    ASSERT_EQ(data.size(), x.size());
    for (std::size_t i = 0; i < scale.size(); ++i) {
      float block[32];
      std::copy_n(&x[32 * i], 32, block);
      const auto b = encode_mxfp8<E4M3>(block);
      ASSERT_EQ(b.scale.bits, scale[i]) << base << " block " << i;
      for (std::size_t j = 0; j < 32; ++j) ASSERT_EQ(b.codes[j].bits, data[32 * i + j]) << base << i;
    }
  }
}

}  // namespace
}  // namespace nibble
