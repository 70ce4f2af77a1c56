// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "models/presets.h"

namespace nibble {
namespace {

std::vector<ModelPreset> join_presets() {
  std::vector<ModelPreset> all = hybrid_presets();
  for (ModelPreset& preset : llama_presets()) all.push_back(std::move(preset));
  return all;
}

template <class T>
void lay_over(std::optional<T>& base, const std::optional<T>& over) {
  if (over) base = over;
}

template <class T>
T need(const std::optional<T>& field, const char* name) {
  check_usage(field.has_value(), "model.{} is missing; give it, or start from model.preset", name);
  return *field;
}

/// Everything a sublayer kind has must be stated; a field that no sublayer reads is a misunderstanding.
template <class T>
void refuse(const std::optional<T>& field, const char* name, const char* why) {
  check_usage(!field.has_value(), "model.{} has no meaning here: {}", name, why);
}

std::optional<RopeSpec> make_rope(const ModelFields& f) {
  RopeSpec rope{.theta = f.rope_theta.value_or(10000)};
  if (f.rope_factor) {
    const Llama3Rope defaults;
    rope.llama3 = Llama3Rope{
        .factor = *f.rope_factor,
        .low_freq_factor = f.rope_low_freq_factor.value_or(defaults.low_freq_factor),
        .high_freq_factor = f.rope_high_freq_factor.value_or(defaults.high_freq_factor),
        .original_max_positions = f.rope_original_positions.value_or(defaults.original_max_positions)};
  } else {
    const char* why = "RoPE is scaled only with model.rope_factor";
    refuse(f.rope_low_freq_factor, "rope_low_freq_factor", why);
    refuse(f.rope_high_freq_factor, "rope_high_freq_factor", why);
    refuse(f.rope_original_positions, "rope_original_positions", why);
  }
  return rope;
}

AttentionSpec make_attention(const ModelFields& f, bool rope) {
  AttentionSpec a{.heads = need(f.heads, "heads")};
  check_usage(a.heads > 0, "model.heads = {} must be positive", a.heads);
  const std::int64_t hidden = need(f.hidden, "hidden");
  check_usage(f.head_dim || hidden % a.heads == 0,
              "model.hidden = {} is not a multiple of model.heads = {}; give model.head_dim", hidden,
              a.heads);
  a.kv_heads = f.kv_heads.value_or(a.heads);
  a.head_dim = f.head_dim.value_or(hidden / a.heads);
  a.qkv_bias = f.qkv_bias.value_or(false);
  if (rope) a.rope = make_rope(f);
  return a;
}

MlpSpec make_mlp(const ModelFields& f, const char* default_activation) {
  const std::string activation = f.activation.value_or(default_activation);
  check_usage(activation == "swiglu" || activation == "relu2",
              "model.activation = \"{}\" is not known; it is \"swiglu\" or \"relu2\"", activation);
  return {.hidden = need(f.ffn, "ffn"),
          .activation = activation == "relu2" ? Activation::Relu2 : Activation::SwiGlu};
}

Mamba2Spec make_mamba(const ModelFields& f, bool grouped_norm) {
  Mamba2Spec m{.heads = need(f.mamba_heads, "mamba_heads"),
               .head_dim = need(f.mamba_head_dim, "mamba_head_dim"),
               .groups = f.mamba_groups.value_or(1),
               .state = f.mamba_state.value_or(128),
               .conv_kernel = f.mamba_conv.value_or(4)};
  m.chunk = f.mamba_chunk.value_or(m.chunk);
  m.norm_groups = grouped_norm ? m.groups : 1;
  return m;
}

void add_hybrid_blocks(const ModelFields& f, DecoderSpec& spec) {
  const std::string& pattern = *f.pattern;
  refuse(f.blocks, "blocks", "model.pattern says how many there are");
  refuse(f.rope_theta, "rope_theta", "the attention of hybrid models has no positional embedding");
  refuse(f.rope_factor, "rope_factor", "the attention of hybrid models has no positional embedding");
  refuse(f.qkv_bias, "qkv_bias", "hybrid models have no biases in attention");
  check_usage(f.activation.value_or("relu2") == "relu2",
              "model.activation must be \"relu2\" in hybrid models: no family that checkpoints are written "
              "for has another");
  const bool pure = pattern.find_first_not_of('M') == std::string::npos;
  spec.family = pure ? "mamba2" : "nemotron_h";
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    SublayerSpec sublayer{.block = static_cast<int>(i)};
    switch (pattern[i]) {
      case 'M':
        sublayer.mixer = make_mamba(f, !pure);
        break;
      case '*':
        sublayer.mixer = make_attention(f, false);
        break;
      case '-':
        sublayer.mixer = make_mlp(f, "relu2");
        break;
      default:
        fail_usage(
            "model.pattern: character '{}' at position {} is not a block; M is Mamba-2, * attention, - MLP",
            pattern[i], i);
    }
    spec.sublayers.push_back(sublayer);
  }
}

void add_llama_blocks(const ModelFields& f, DecoderSpec& spec) {
  const char* why = "it belongs to hybrid models, which model.pattern describes";
  refuse(f.mamba_heads, "mamba_heads", why);
  refuse(f.mamba_head_dim, "mamba_head_dim", why);
  refuse(f.mamba_groups, "mamba_groups", why);
  refuse(f.mamba_state, "mamba_state", why);
  refuse(f.mamba_conv, "mamba_conv", why);
  refuse(f.mamba_chunk, "mamba_chunk", why);
  const AttentionSpec attention = make_attention(f, true);
  const MlpSpec mlp = make_mlp(f, "swiglu");
  const std::int64_t blocks = need(f.blocks, "blocks");
  spec.family = attention.qkv_bias ? "qwen2" : mlp.activation == Activation::Relu2 ? "arcee" : "llama";
  check_usage(!(attention.qkv_bias && mlp.activation == Activation::Relu2),
              "model.qkv_bias with model.activation = \"relu2\": no Hugging Face family has both, so "
              "checkpoints could "
              "not be written");
  for (int block = 0; block < blocks; ++block) {
    spec.sublayers.push_back({block, attention});
    spec.sublayers.push_back({block, mlp});
  }
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets = join_presets();
  return presets;
}

const ModelPreset& find_preset(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  fail_usage("model.preset: there is no preset \"{}\"{} The presets are: {}.", name,
             did_you_mean(name, names), fmt::join(names, ", "));
}

ModelFields merged(ModelFields base, const ModelFields& over) {
  lay_over(base.pattern, over.pattern);
  lay_over(base.blocks, over.blocks);
  lay_over(base.vocab_size, over.vocab_size);
  lay_over(base.hidden, over.hidden);
  lay_over(base.ffn, over.ffn);
  lay_over(base.heads, over.heads);
  lay_over(base.kv_heads, over.kv_heads);
  lay_over(base.head_dim, over.head_dim);
  lay_over(base.max_sequence, over.max_sequence);
  lay_over(base.activation, over.activation);
  lay_over(base.tied, over.tied);
  lay_over(base.qkv_bias, over.qkv_bias);
  lay_over(base.rope_theta, over.rope_theta);
  lay_over(base.rope_factor, over.rope_factor);
  lay_over(base.rope_low_freq_factor, over.rope_low_freq_factor);
  lay_over(base.rope_high_freq_factor, over.rope_high_freq_factor);
  lay_over(base.rope_original_positions, over.rope_original_positions);
  lay_over(base.mamba_heads, over.mamba_heads);
  lay_over(base.mamba_head_dim, over.mamba_head_dim);
  lay_over(base.mamba_groups, over.mamba_groups);
  lay_over(base.mamba_state, over.mamba_state);
  lay_over(base.mamba_conv, over.mamba_conv);
  lay_over(base.mamba_chunk, over.mamba_chunk);
  lay_over(base.norm_eps, over.norm_eps);
  lay_over(base.init_sigma, over.init_sigma);
  return base;
}

DecoderSpec make_spec(const ModelFields& fields) {
  DecoderSpec spec{.vocab = need(fields.vocab_size, "vocab_size"),
                   .d_model = need(fields.hidden, "hidden"),
                   .max_seq = fields.max_sequence.value_or(4096),
                   .norm_eps = fields.norm_eps.value_or(1e-5),
                   .tied = fields.tied.value_or(false),
                   .init_sigma = fields.init_sigma.value_or(0.02)};
  if (fields.pattern) {
    add_hybrid_blocks(fields, spec);
  } else {
    add_llama_blocks(fields, spec);
  }
  check_spec(spec);
  return spec;
}

DecoderSpec preset_spec(std::string_view name) { return make_spec(find_preset(name).fields); }

}  // namespace nibble
