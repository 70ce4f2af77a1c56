// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "io/safetensors.h"
#include "models/flops.h"
#include "models/hf_names.h"
#include "models/parameters.h"
#include "models/registry.h"

namespace nibble {
namespace {

const std::filesystem::path kGolden = NIBBLE_SOURCE_DIR "/tests/golden";

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class GoldenModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return kGolden / "models" / GetParam(); }
  DecoderSpec spec() const { return spec_from_config_json(slurp(folder() / "config.json"), GetParam()); }
};

TEST_P(GoldenModel, ConfigRoundTrips) {
  EXPECT_EQ(spec_from_config_json(to_config_json(spec(), {}), "ours"), spec());
}

TEST_P(GoldenModel, HasExactlyOurTensorsWithOurShapes) {
  const Safetensors file = Safetensors::open_file(folder() / "model.safetensors");
  const std::vector<HfSlice> slices = hf_slices(spec());
  EXPECT_EQ(file.entries().size(), slices.size());
  for (const HfSlice& slice : slices) EXPECT_EQ(file.at(slice.hf_name).shape, slice.shape) << slice.hf_name;
}

TEST_P(GoldenModel, GradientsCarryTheLibraryNames) {
  const Safetensors file = Safetensors::open_file(folder() / "golden.safetensors");
  for (const HfSlice& slice : hf_slices(spec())) {
    EXPECT_NE(file.find("grad." + hf_library_name(spec(), slice.hf_name)), nullptr) << slice.hf_name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Values("llama", "llama3_rope", "qwen2", "nemotron_h", "mamba2"));

TEST(GoldenExplain, PlanOfTheQuickstartModelIsAsRecorded) {
  const DecoderSpec spec = preset_spec("hybrid-tiny");
  const FlopsPerToken flops = flops_per_token(spec, 256);
  const Recipe recipe = edited(find_recipe("nvfp4"), {.keep_bf16 = {"blocks.3.attention.out"}});
  const std::string text = explain(recipe, linears(spec), 0, flops.total() - flops.linears);
  EXPECT_EQ(text, slurp(kGolden / "explain_hybrid_tiny.txt")) << text;
}

}  // namespace
}  // namespace nibble
