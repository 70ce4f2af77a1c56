// SPDX-License-Identifier: Apache-2.0
// Nemotron-H (pattern of M, *, -) and Mamba-2 (M alone, whose gated norm is over the whole row).
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "models/hf_family.h"

namespace nibble {
namespace {

void add_mixer(SliceList& list, const std::string& hf, const std::string& internal, const AttentionSpec& a,
               std::int64_t d) {
  list.attention(hf, internal, a, d);
}

void add_mixer(SliceList& list, const std::string& hf, const std::string& internal, const MlpSpec& m,
               std::int64_t d) {
  list.whole(hf + "up_proj.weight", internal + ".up.weight", {m.hidden, d});
  list.whole(hf + "down_proj.weight", internal + ".down.weight", {d, m.hidden});
}

void add_mixer(SliceList& list, const std::string& hf, const std::string& internal, const Mamba2Spec& m,
               std::int64_t d) {
  list.whole(hf + "in_proj.weight", internal + ".in.weight", {m.in_rows(), d});
  list.whole(hf + "conv1d.weight", internal + ".conv.weight", {m.conv_channels(), 1, m.conv_kernel});
  if (m.conv_bias) list.whole(hf + "conv1d.bias", internal + ".conv.bias", {m.conv_channels()});
  list.whole(hf + "dt_bias", internal + ".dt_bias", {m.heads});
  list.whole(hf + "A_log", internal + ".A_log", {m.heads});
  list.whole(hf + "D", internal + ".D", {m.heads});
  list.whole(hf + "norm.weight", internal + ".gated_norm.weight", {m.inner()});
  list.whole(hf + "out_proj.weight", internal + ".out.weight", {d, m.inner()});
}

std::vector<HfSlice> hybrid_slices(const DecoderSpec& spec) {
  SliceList list;
  list.whole("backbone.embeddings.weight", "embedding.weight", {spec.vocab, spec.d_model});
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const std::string layer = fmt::format("backbone.layers.{}.", spec.sublayers[i].block);
    const std::string internal = sublayer_name(spec, i);
    list.whole(layer + "norm.weight", internal + ".norm.weight", {spec.d_model});
    std::visit([&](const auto& m) { add_mixer(list, layer + "mixer.", internal, m, spec.d_model); },
               spec.sublayers[i].mixer);
  }
  list.whole("backbone.norm_f.weight", "final_norm.weight", {spec.d_model});
  if (!spec.tied) list.whole("lm_head.weight", "head.weight", {spec.vocab, spec.d_model});
  return list.take();
}

/// The mixer of this kind; all of a kind must be alike, since config.json has one set of fields for them.
template <class T>
const T* only(const DecoderSpec& spec) {
  const T* first = nullptr;
  for (const SublayerSpec& sublayer : spec.sublayers) {
    const T* mixer = std::get_if<T>(&sublayer.mixer);
    if (mixer == nullptr) continue;
    if (first == nullptr) first = mixer;
    check_usage(*first == *mixer, "export: all {} blocks of a {} model must be alike",
                mixer_name(sublayer.mixer), spec.family);
  }
  return first;
}

Json write_common(const DecoderSpec& spec, const char* architecture) {
  // time_step_min 0: transformers 5.17 takes it as a floor under dt, which Mamba-2 does not have.
  // time_step_limit is left to its default, (0, infinity), because JSON has no infinity.
  return {{"architectures", {architecture}},
          {"num_hidden_layers", spec.blocks()},
          {"layer_norm_epsilon", spec.norm_eps},
          {"time_step_min", 0.0},
          {"time_step_max", 0.1},
          {"time_step_floor", 1e-4},
          {"use_bias", false},
          {"residual_in_fp32", false}};
}

/// `expand` is written as the nearest integer: Nemotron-H readers take the inner width from heads x head
/// size.
std::int64_t expansion(const DecoderSpec& spec, const Mamba2Spec& m) {
  return std::max<std::int64_t>(
      1, std::llround(static_cast<double>(m.inner()) / static_cast<double>(spec.d_model)));
}

Json write_nemotron_h(const DecoderSpec& spec) {
  Json config = write_common(spec, "NemotronHForCausalLM");
  const std::string letters = pattern(spec);
  Json types = Json::array();
  for (const char c : letters)
    types.push_back(c == 'M' ? "linear_attention" : c == '*' ? "full_attention" : "mlp");
  config["hybrid_override_pattern"] = letters;
  config["layers_block_type"] = types;
  const AttentionSpec* const attention = only<AttentionSpec>(spec);
  const AttentionSpec a = attention != nullptr ? *attention : AttentionSpec{1, 1, 16};
  config["num_attention_heads"] = a.heads;
  config["num_key_value_heads"] = a.kv_heads;
  config["head_dim"] = a.head_dim;
  config["attention_head_dim"] = a.head_dim;
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  const MlpSpec* const mlp = only<MlpSpec>(spec);
  config["intermediate_size"] = mlp != nullptr ? mlp->hidden : spec.d_model;
  config["mlp_hidden_act"] = "relu2";
  config["mlp_bias"] = false;
  const Mamba2Spec* const mamba = only<Mamba2Spec>(spec);
  const Mamba2Spec m = mamba != nullptr ? *mamba : Mamba2Spec{.heads = 1, .head_dim = 16};
  config["mamba_num_heads"] = m.heads;
  config["mamba_head_dim"] = m.head_dim;
  config["ssm_state_size"] = m.state;
  config["n_groups"] = m.groups;
  config["conv_kernel"] = m.conv_kernel;
  config["use_conv_bias"] = m.conv_bias;
  config["chunk_size"] = m.chunk;
  config["expand"] = expansion(spec, m);
  config["mamba_hidden_act"] = "silu";
  config["mamba_proj_bias"] = false;
  config["rescale_prenorm_residual"] = true;
  return config;
}

Json write_mamba2(const DecoderSpec& spec) {
  const Mamba2Spec* m = only<Mamba2Spec>(spec);
  check_usage(
      m != nullptr && m->inner() % spec.d_model == 0,
      "export: transformers' Mamba-2 needs mamba_heads x mamba_head_dim = {} to be a multiple of hidden = {}",
      m == nullptr ? 0 : m->inner(), spec.d_model);
  Json config = write_common(spec, "Mamba2ForCausalLM");
  // transformers 5.24 takes the logarithm of time_step_min while it loads this family; 5.17 uses it as a
  // floor, and a dt of 1e-30 is none.
  config["time_step_min"] = 1e-30;
  config["num_heads"] = m->heads;
  config["head_dim"] = m->head_dim;
  config["state_size"] = m->state;
  config["n_groups"] = m->groups;
  config["conv_kernel"] = m->conv_kernel;
  config["use_conv_bias"] = m->conv_bias;
  config["chunk_size"] = m->chunk;
  config["expand"] = expansion(spec, *m);
  config["hidden_act"] = "silu";
  config["rescale_prenorm_residual"] = false;
  return config;
}

void check_time_steps(const Json& config, const std::string& where) {
  if (!config.contains("time_step_limit") || config["time_step_limit"].is_null()) return;
  const auto& limit = config["time_step_limit"];
  check_usage(limit.is_array() && limit.size() == 2 && json_double(limit[0], where) == 0 &&
                  json_double(limit[1], where) == std::numeric_limits<double>::infinity(),
              "{}: \"time_step_limit\" is {}; only [0, Infinity] is supported", where, limit.dump());
}

Mamba2Spec read_mamba(const Json& config, const std::string& where, const char* heads, const char* head_dim,
                      const char* state) {
  require_option(config, "use_bias", false, where);
  require_option(config, "mamba_proj_bias", false, where);
  check_time_steps(config, where);
  Mamba2Spec m{.heads = json_get<std::int64_t>(config, heads, where),
               .head_dim = json_get<std::int64_t>(config, head_dim, where),
               .groups = json_get<std::int64_t>(config, "n_groups", where),
               .state = json_get<std::int64_t>(config, state, where)};
  m.conv_kernel = json_get_or<std::int64_t>(config, "conv_kernel", 4, where);
  m.conv_bias = json_get_or<bool>(config, "use_conv_bias", true, where);
  m.chunk = json_get_or<std::int64_t>(config, "chunk_size", m.chunk, where);
  return m;
}

/// A character a block, from either spelling; Megatron's pipeline cuts are dropped.
std::string read_pattern(const Json& config, const std::string& where) {
  std::string letters;
  if (config.contains("layers_block_type") && config["layers_block_type"].is_array()) {
    for (const Json& entry : config["layers_block_type"]) {
      const std::string type = entry.is_string() ? entry.get<std::string>() : entry.dump();
      if (type == "mamba" || type == "linear_attention") {
        letters += 'M';
      } else if (type == "attention" || type == "full_attention") {
        letters += '*';
      } else {
        check_usage(type == "mlp",
                    "{}: \"layers_block_type\" has \"{}\", which is not supported; the kinds are "
                    "linear_attention (mamba), full_attention (attention) and mlp",
                    where, type);
        letters += '-';
      }
    }
    return letters;
  }
  for (const char c : json_get<std::string>(config, "hybrid_override_pattern", where)) {
    if (c == '|') continue;
    check_usage(
        c == 'M' || c == '*' || c == '-',
        "{}: \"hybrid_override_pattern\" has '{}', which is not supported; M is Mamba-2, * attention, - MLP",
        where, c);
    letters += c;
  }
  return letters;
}

DecoderSpec read_nemotron_h(const Json& config, const std::string& where) {
  require_option(config, "attention_bias", false, where);
  require_option(config, "mlp_bias", false, where);
  require_option(config, "mlp_hidden_act", "relu2", where);
  require_option(config, "mamba_hidden_act", "silu", where);
  require_option(config, "sliding_window", nullptr, where);
  DecoderSpec spec{.norm_eps = json_get_or<double>(config, "layer_norm_epsilon", 1e-5, where)};
  const std::string letters = read_pattern(config, where);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    SublayerSpec sublayer{.block = static_cast<int>(i)};
    if (letters[i] == 'M') {
      Mamba2Spec m = read_mamba(config, where, "mamba_num_heads", "mamba_head_dim", "ssm_state_size");
      m.norm_groups = m.groups;
      sublayer.mixer = m;
    } else if (letters[i] == '*') {
      AttentionSpec a{.heads = json_get<std::int64_t>(config, "num_attention_heads", where)};
      a.kv_heads = json_get_or<std::int64_t>(config, "num_key_value_heads", a.heads, where);
      const auto older = json_get_or<std::int64_t>(config, "attention_head_dim", 128, where);
      a.head_dim = json_get_or<std::int64_t>(config, "head_dim", older, where);
      sublayer.mixer = a;
    } else {
      sublayer.mixer = MlpSpec{.hidden = json_get<std::int64_t>(config, "intermediate_size", where),
                               .activation = Activation::Relu2};
    }
    spec.sublayers.push_back(sublayer);
  }
  return spec;
}

DecoderSpec read_mamba2(const Json& config, const std::string& where) {
  require_option(config, "hidden_act", "silu", where);
  require_option(config, "rms_norm", true, where);
  DecoderSpec spec{.norm_eps = json_get_or<double>(config, "layer_norm_epsilon", 1e-5, where)};
  const Mamba2Spec m = read_mamba(config, where, "num_heads", "head_dim", "state_size");
  const int blocks = json_get<int>(config, "num_hidden_layers", where);
  for (int block = 0; block < blocks; ++block) spec.sublayers.push_back({block, m});
  return spec;
}

}  // namespace

std::vector<HfFamily> hybrid_hf_families() {
  return {{"nemotron_h", hybrid_slices, write_nemotron_h, read_nemotron_h},
          {"mamba2", hybrid_slices, write_mamba2, read_mamba2}};
}

}  // namespace nibble
