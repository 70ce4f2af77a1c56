// SPDX-License-Identifier: Apache-2.0
// Llama and its two relatives: Qwen2 (biases on q, k, v) and Arcee (squared ReLU without a gate).
#include <string>

#include "base/error.h"
#include "models/hf_family.h"

namespace nibble {
namespace {

void add_mlp(SliceList& list, const std::string& hf, const std::string& internal, const MlpSpec& m,
             std::int64_t d) {
  if (m.activation == Activation::SwiGlu) {
    list.rows(hf + "gate_proj.weight", internal + ".up.weight", 0, m.hidden, d);
    list.rows(hf + "up_proj.weight", internal + ".up.weight", m.hidden, m.hidden, d);
  } else {
    list.whole(hf + "up_proj.weight", internal + ".up.weight", {m.hidden, d});
  }
  list.whole(hf + "down_proj.weight", internal + ".down.weight", {d, m.hidden});
}

std::vector<HfSlice> llama_slices(const DecoderSpec& spec) {
  SliceList list;
  list.whole("model.embed_tokens.weight", "embedding.weight", {spec.vocab, spec.d_model});
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const SublayerSpec& sublayer = spec.sublayers[i];
    const std::string layer = fmt::format("model.layers.{}.", sublayer.block);
    const std::string internal = sublayer_name(spec, i);
    if (const auto* a = std::get_if<AttentionSpec>(&sublayer.mixer)) {
      list.whole(layer + "input_layernorm.weight", internal + ".norm.weight", {spec.d_model});
      list.attention(layer + "self_attn.", internal, *a, spec.d_model);
    } else {
      list.whole(layer + "post_attention_layernorm.weight", internal + ".norm.weight", {spec.d_model});
      add_mlp(list, layer + "mlp.", internal, std::get<MlpSpec>(sublayer.mixer), spec.d_model);
    }
  }
  list.whole("model.norm.weight", "final_norm.weight", {spec.d_model});
  if (!spec.tied) list.whole("lm_head.weight", "head.weight", {spec.vocab, spec.d_model});
  return list.take();
}

void write_rope(Json& config, const RopeSpec& rope) {
  // The spelling of transformers 4 is the one that every reader, 5 included, understands.
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = nullptr;
  if (!rope.llama3) return;
  config["rope_scaling"] = Json{{"rope_type", "llama3"},
                                {"factor", rope.llama3->factor},
                                {"low_freq_factor", rope.llama3->low_freq_factor},
                                {"high_freq_factor", rope.llama3->high_freq_factor},
                                {"original_max_position_embeddings", rope.llama3->original_max_positions}};
}

/// All blocks are alike in these families.
Json write_common(const DecoderSpec& spec, const char* architecture) {
  check_usage(spec.sublayers.size() >= 2, "export: a {} model needs blocks of attention and MLP",
              spec.family);
  const auto& a = std::get<AttentionSpec>(spec.sublayers[0].mixer);
  const auto& m = std::get<MlpSpec>(spec.sublayers[1].mixer);
  check_usage(a.rope.has_value(), "export: {} models have rotary embeddings, this one has none", spec.family);
  Json config{{"architectures", {architecture}},
              {"num_hidden_layers", spec.blocks()},
              {"intermediate_size", m.hidden},
              {"num_attention_heads", a.heads},
              {"num_key_value_heads", a.kv_heads},
              {"head_dim", a.head_dim},
              {"hidden_act", m.activation == Activation::Relu2 ? "relu2" : "silu"},
              {"rms_norm_eps", spec.norm_eps},
              {"attention_dropout", 0.0}};
  write_rope(config, *a.rope);
  return config;
}

Json write_llama(const DecoderSpec& spec) {
  Json config = write_common(spec, "LlamaForCausalLM");
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  return config;
}

Json write_arcee(const DecoderSpec& spec) {
  Json config = write_common(spec, "ArceeForCausalLM");
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  return config;
}

Json write_qwen2(const DecoderSpec& spec) {
  Json config = write_common(spec, "Qwen2ForCausalLM");
  config["use_sliding_window"] = false;
  return config;
}

/// v5: rope_parameters {rope_type, rope_theta, ...}; v4: rope_theta beside rope_scaling {rope_type or type,
/// ...}.
RopeSpec read_rope(const Json& config, const std::string& where) {
  const bool v5 = config.contains("rope_parameters") && config["rope_parameters"].is_object();
  const bool v4 = config.contains("rope_scaling") && config["rope_scaling"].is_object();
  const Json rope = v5 ? config["rope_parameters"] : v4 ? config["rope_scaling"] : Json::object();
  RopeSpec spec;
  const double outer = json_get_or<double>(config, "rope_theta", 10000.0, where);
  spec.theta = json_get_or<double>(rope, "rope_theta", outer, where);
  require_option(config, "partial_rotary_factor", 1.0, where);
  require_option(rope, "partial_rotary_factor", 1.0, where);
  const std::string older = json_get_or<std::string>(rope, "type", "default", where);
  const std::string type = json_get_or<std::string>(rope, "rope_type", older, where);
  check_usage(type == "default" || type == "llama3",
              "{}: RoPE scaling \"{}\" is not supported; only \"default\" and \"llama3\" are", where, type);
  if (type == "llama3") {
    spec.llama3 = Llama3Rope{
        .factor = json_get<double>(rope, "factor", where),
        .low_freq_factor = json_get<double>(rope, "low_freq_factor", where),
        .high_freq_factor = json_get<double>(rope, "high_freq_factor", where),
        .original_max_positions = json_get<std::int64_t>(rope, "original_max_position_embeddings", where)};
  }
  return spec;
}

DecoderSpec read_common(const Json& config, const std::string& where, Activation activation, bool qkv_bias) {
  require_option(config, "hidden_act", activation == Activation::Relu2 ? "relu2" : "silu", where);
  require_option(config, "mlp_bias", false, where);
  DecoderSpec spec{.norm_eps = json_get_or<double>(config, "rms_norm_eps", 1e-6, where)};
  AttentionSpec a{.heads = json_get<std::int64_t>(config, "num_attention_heads", where)};
  check_usage(a.heads > 0, "{}: \"num_attention_heads\" is {}; it must be positive", where, a.heads);
  a.kv_heads = json_get_or<std::int64_t>(config, "num_key_value_heads", a.heads, where);
  const auto hidden = json_get<std::int64_t>(config, "hidden_size", where);
  a.head_dim = json_get_or<std::int64_t>(config, "head_dim", hidden / a.heads, where);
  a.qkv_bias = qkv_bias;
  a.rope = read_rope(config, where);
  const MlpSpec m{.hidden = json_get<std::int64_t>(config, "intermediate_size", where),
                  .activation = activation};
  const int blocks = json_get<int>(config, "num_hidden_layers", where);
  for (int block = 0; block < blocks; ++block) {
    spec.sublayers.push_back({block, a});
    spec.sublayers.push_back({block, m});
  }
  return spec;
}

DecoderSpec read_llama(const Json& config, const std::string& where) {
  require_option(config, "attention_bias", false, where);
  return read_common(config, where, Activation::SwiGlu, false);
}

DecoderSpec read_arcee(const Json& config, const std::string& where) {
  require_option(config, "attention_bias", false, where);
  return read_common(config, where, Activation::Relu2, false);
}

DecoderSpec read_qwen2(const Json& config, const std::string& where) {
  require_option(config, "use_sliding_window", false, where);
  return read_common(config, where, Activation::SwiGlu, true);
}

}  // namespace

std::vector<HfFamily> llama_hf_families() {
  return {{"llama", llama_slices, write_llama, read_llama},
          {"qwen2", llama_slices, write_qwen2, read_qwen2},
          {"arcee", llama_slices, write_arcee, read_arcee}};
}

}  // namespace nibble
