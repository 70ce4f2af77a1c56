// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/usage_error_testing.h"
#include "models/flops.h"
#include "models/hf_names.h"
#include "models/parameters.h"
#include "models/registry.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing::usage_error;

DecoderSpec tiny_qwen2() {
  ModelFields fields = find_preset("llama-tiny").fields;
  fields.qkv_bias = true;
  fields.tied = true;
  return make_spec(fields);
}

/// Every preset, and the options that no preset has.
std::vector<DecoderSpec> all_specs() {
  std::vector<DecoderSpec> specs = {tiny_qwen2()};
  for (const ModelPreset& preset : model_presets()) specs.push_back(make_spec(preset.fields));
  return specs;
}

std::int64_t matmul_params(const DecoderSpec& spec) {
  std::int64_t count = 0;
  for (const ParamInfo& p : parameters(spec)) count += p.is_matmul ? p.size() : 0;
  return count;
}

TEST(Presets, HaveTheExactParameterCountsOfTheirSources) {
  const std::map<std::string, std::int64_t> known = {
      {"paper-12b", 12314591360},    {"nemotron-nano-12b-v2", 12310001152}, {"paper-8b", 8084075520},
      {"nemotron-h-8b", 8100852736}, {"llama-3.1-8b", 8030261248},          {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304}};
  for (const auto& [name, count] : known) EXPECT_EQ(param_count(preset_spec(name)), count) << name;
}

TEST(Presets, OfThePaperHaveItsShapes) {
  const DecoderSpec small = preset_spec("paper-1.2b");
  EXPECT_EQ(small.blocks(), 20);
  EXPECT_EQ(std::get<MlpSpec>(small.sublayers[1].mixer).hidden, 6144);
  const DecoderSpec big = preset_spec("paper-12b");
  EXPECT_EQ(big.blocks(), 62);
  const std::string letters = pattern(big);
  EXPECT_EQ(std::count(letters.begin(), letters.end(), 'M'), 28);
  EXPECT_EQ(std::count(letters.begin(), letters.end(), '*'), 6);
}

TEST(Presets, TinyOnesFitTheQuickstartsBudget) {
  for (const char* name : {"hybrid-tiny", "llama-tiny", "mamba-tiny"}) {
    const std::int64_t count = matmul_params(preset_spec(name));
    EXPECT_GT(count, 1'500'000) << name;
    EXPECT_LT(count * 2048, 5'000'000'000) << name;
  }
}

TEST(Presets, TinyOnesSuitBlocksOf32) {
  for (const char* name : {"hybrid-tiny", "llama-tiny", "mamba-tiny"}) {
    for (const LinearInfo& l : linears(preset_spec(name))) {
      EXPECT_EQ(l.n % 32, 0) << l.name;
      EXPECT_EQ(l.k % 32, 0) << l.name;
    }
  }
}

TEST(Presets, AnUnknownNameSuggestsTheNearest) {
  EXPECT_THAT(usage_error([] { find_preset("hybird-tiny"); }), HasSubstr("did you mean \"hybrid-tiny\""));
}

TEST(MakeSpec, NamesWhatIsMissingOrMeaningless) {
  EXPECT_THAT(usage_error([] { make_spec({}); }), HasSubstr("model.vocab_size is missing"));
  ModelFields fields = find_preset("llama-tiny").fields;
  fields.mamba_heads = 4;
  EXPECT_THAT(usage_error([&] { make_spec(fields); }), HasSubstr("model.mamba_heads"));
  fields = find_preset("llama-tiny").fields;
  fields.kv_heads = 4;
  EXPECT_THAT(usage_error([&] { make_spec(fields); }), HasSubstr("multiple of kv_heads"));
  fields = find_preset("hybrid-tiny").fields;
  fields.pattern = "M-X";
  EXPECT_THAT(usage_error([&] { make_spec(fields); }), HasSubstr("'X' at position 2"));
}

TEST(MakeSpec, PureMambaHasTheUngroupedNorm) {
  const DecoderSpec spec = preset_spec("mamba-tiny");
  EXPECT_EQ(spec.family, "mamba2");
  EXPECT_EQ(std::get<Mamba2Spec>(spec.sublayers[0].mixer).norm_groups, 1);
  EXPECT_EQ(std::get<Mamba2Spec>(preset_spec("hybrid-tiny").sublayers[0].mixer).norm_groups, 2);
}

TEST(Parameters, NamesAreUniqueAndVectorsNeverDecay) {
  for (const DecoderSpec& spec : all_specs()) {
    std::set<std::string> names;
    for (const ParamInfo& p : parameters(spec)) {
      EXPECT_TRUE(names.insert(p.name).second) << p.name;
      EXPECT_EQ(p.decay, p.shape.size() >= 2) << p.name;
    }
  }
}

TEST(Parameters, ResidualOutputsShrinkWithTheNumberOfResidualAdds) {
  const auto sigma = [](const char* preset, const std::string& name) {
    for (const ParamInfo& p : parameters(preset_spec(preset))) {
      if (p.name == name) return p.scale;
    }
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(sigma("llama-tiny", "blocks.1.mlp.down.weight"), 0.02 / std::sqrt(2.0 * 4));
  EXPECT_DOUBLE_EQ(sigma("llama-tiny", "blocks.1.attention.qkv.weight"), 0.02);
  EXPECT_DOUBLE_EQ(sigma("paper-12b", "blocks.0.mamba.out.weight"), 0.0125 / std::sqrt(62.0));
  EXPECT_DOUBLE_EQ(sigma("hybrid-tiny", "blocks.0.mamba.conv.weight"), 0.5);
}

TEST(Linears, AreExactlyTheMatmulParametersOfTheBlocks) {
  for (const DecoderSpec& spec : all_specs()) {
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const ParamInfo& p : parameters(spec)) {
      if (p.is_matmul) shapes[p.name] = p.shape;
    }
    shapes.erase("head.weight");
    shapes.erase("embedding.weight");
    const std::vector<LinearInfo> all = linears(spec);
    EXPECT_EQ(shapes.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(shapes.at(all[i].name + ".weight"), (std::vector<std::int64_t>{all[i].n, all[i].k}));
      EXPECT_EQ(all[i].position, static_cast<int>(i));
    }
  }
}

TEST(Linears, ShareInBf16IsThePapers) {
  const auto share = [](const char* name) {
    const ModelPreset& preset = find_preset(name);
    const Recipe recipe =
        edited(find_recipe("nvfp4"), {.bf16_first = preset.bf16_first, .bf16_last = preset.bf16_last});
    return base_share(recipe, linears(make_spec(preset.fields)), 0);
  };
  EXPECT_EQ(share("paper-12b").kept, 20);
  EXPECT_EQ(share("paper-12b").linears, 124);
  EXPECT_NEAR(share("paper-8b").by_count, 0.154, 5e-4);
}

TEST(Flops, OfLlama8bAreMlperfsConstant) {
  const double sample = flops_per_token(preset_spec("llama-3.1-8b"), 8192).total() * 8192;
  EXPECT_NEAR(sample / 1e12, 421.65, 0.005);
  EXPECT_NEAR(sample / 1e12, 421.59, 0.1);
}

TEST(Flops, AreSixTimesTheMatmulParametersBesideAttentionAndScan) {
  for (const DecoderSpec& spec : all_specs()) {
    const FlopsPerToken flops = flops_per_token(spec, 1024);
    EXPECT_DOUBLE_EQ(flops.linears + flops.head, 6.0 * static_cast<double>(matmul_params(spec)))
        << spec.family;
  }
}

TEST(HfSlices, CoverEveryParameterExactlyOnce) {
  for (const DecoderSpec& spec : all_specs()) {
    std::map<std::string, std::int64_t> next_row;
    std::set<std::string> hf_names;
    std::map<std::string, std::int64_t> elements;
    for (const HfSlice& s : hf_slices(spec)) {
      EXPECT_TRUE(hf_names.insert(s.hf_name).second) << s.hf_name;
      EXPECT_EQ(next_row[s.internal], s.row_begin) << s.hf_name;
      next_row[s.internal] += s.rows;
      EXPECT_EQ(s.shape.front(), s.rows);
      elements[s.internal] += ParamInfo{.shape = s.shape}.size();
    }
    const std::vector<ParamInfo> params = parameters(spec);
    EXPECT_EQ(next_row.size(), params.size());
    for (const ParamInfo& p : params) {
      EXPECT_EQ(next_row[p.name], p.shape.front()) << p.name;
      EXPECT_EQ(elements[p.name], p.size()) << p.name;
    }
  }
}

TEST(ConfigJson, RoundTripsEveryPreset) {
  for (const DecoderSpec& spec : all_specs()) {
    const std::string text = to_config_json(spec, {.bos = 1, .eos = 2});
    EXPECT_EQ(spec_from_config_json(text, "config.json"), spec) << text;
  }
}

TEST(ConfigJson, OfAHybridSaysThePatternTwiceAndNoFloorUnderTheTimeStep) {
  const std::string text = to_config_json(preset_spec("hybrid-tiny"), {});
  EXPECT_THAT(text, HasSubstr("\"hybrid_override_pattern\": \"M-M*-M-\""));
  EXPECT_THAT(text, HasSubstr("\"linear_attention\""));
  EXPECT_THAT(text, HasSubstr("\"time_step_min\": 0.0"));
  EXPECT_THAT(text, HasSubstr("\"eos_token_id\": null"));
}

constexpr const char* kHybrid = R"("model_type": "nemotron_h", "vocab_size": 64, "hidden_size": 32,
  "num_attention_heads": 2, "attention_head_dim": 16, "intermediate_size": 64, "mamba_num_heads": 4,
  "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16)";

DecoderSpec read_hybrid(const std::string& rest) {
  return spec_from_config_json(std::string("{") + kHybrid + ", " + rest + "}", "config.json");
}

TEST(ConfigJson, ReadsOldAndNewSpellingsOfThePatternAndOfInfinity) {
  const DecoderSpec spec =
      read_hybrid(R"("hybrid_override_pattern": "M-*", "time_step_limit": [0.0, Infinity])");
  EXPECT_EQ(pattern(spec), "M-*");
  EXPECT_EQ(std::get<AttentionSpec>(spec.sublayers[2].mixer).head_dim, 16);
  EXPECT_EQ(read_hybrid(R"("layers_block_type": ["mamba", "mlp", "attention"])"), spec);
  EXPECT_EQ(read_hybrid(R"("layers_block_type": ["linear_attention", "mlp", "full_attention"],
                           "time_step_limit": [0.0, {"__float__": "Infinity"}])"),
            spec);
}

TEST(ConfigJson, RefusesWhatItCannotCompute) {
  EXPECT_THAT(usage_error([] { read_hybrid(R"("hybrid_override_pattern": "MEM")"); }), HasSubstr("'E'"));
  EXPECT_THAT(usage_error([] { read_hybrid(R"("hybrid_override_pattern": "M", "use_bias": true)"); }),
              HasSubstr("use_bias"));
  EXPECT_THAT(
      usage_error([] { read_hybrid(R"("hybrid_override_pattern": "M", "time_step_limit": [0.0, 1.0])"); }),
      HasSubstr("time_step_limit"));
  EXPECT_THAT(usage_error([] { spec_from_config_json(R"({"model_type": "gpt2"})", "config.json"); }),
              HasSubstr("\"gpt2\" is not supported"));
}

TEST(ConfigJson, ReadsBothSpellingsOfRope) {
  const std::string base =
      R"("model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2,
    "num_hidden_layers": 1, "intermediate_size": 64, "max_position_embeddings": 64)";
  const std::string scaling = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32)";
  const DecoderSpec v4 = spec_from_config_json(
      "{" + base + R"(, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", )" + scaling + "}}", "c");
  const DecoderSpec v5 = spec_from_config_json(
      "{" + base + R"(, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", )" + scaling + "}}",
      "c");
  EXPECT_EQ(v4, v5);
  EXPECT_EQ(std::get<AttentionSpec>(v4.sublayers[0].mixer).rope->theta, 5e5);
  EXPECT_TRUE(std::get<AttentionSpec>(v4.sublayers[0].mixer).rope->llama3.has_value());
  EXPECT_THAT(usage_error([&] {
                spec_from_config_json("{" + base + R"(, "rope_scaling": {"type": "yarn", "factor": 2.0}})",
                                      "c");
              }),
              HasSubstr("yarn"));
}

}  // namespace
}  // namespace nibble
