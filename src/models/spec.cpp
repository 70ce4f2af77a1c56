// SPDX-License-Identifier: Apache-2.0
#include "models/spec.h"

#include "base/error.h"

namespace nibble {
namespace {

void check_positive(const std::string& where, const char* field, std::int64_t value) {
  check_usage(value > 0, "model: {}{} = {} must be positive", where, field, value);
}

void check_mixer(const std::string& where, const AttentionSpec& a) {
  check_positive(where, "heads", a.heads);
  check_positive(where, "kv_heads", a.kv_heads);
  check_positive(where, "head_dim", a.head_dim);
  check_usage(a.heads % a.kv_heads == 0, "model: {}heads = {} must be a multiple of kv_heads = {}", where,
              a.heads, a.kv_heads);
  if (!a.rope) return;
  check_usage(a.head_dim % 2 == 0, "model: {}head_dim = {} must be even, since RoPE rotates pairs", where,
              a.head_dim);
  check_usage(a.rope->theta > 0, "model: {}rope_theta = {} must be positive", where, a.rope->theta);
  if (!a.rope->llama3) return;
  const Llama3Rope& l = *a.rope->llama3;
  check_usage(l.factor > 0 && l.low_freq_factor > 0 && l.high_freq_factor > l.low_freq_factor &&
                  l.original_max_positions > 0,
              "model: {}RoPE scaling needs factor > 0, 0 < low_freq_factor < high_freq_factor and "
              "original_max_position_embeddings > 0",
              where);
}

void check_mixer(const std::string& where, const MlpSpec& m) { check_positive(where, "ffn", m.hidden); }

void check_mixer(const std::string& where, const Mamba2Spec& m) {
  check_positive(where, "mamba_heads", m.heads);
  check_positive(where, "mamba_head_dim", m.head_dim);
  check_positive(where, "mamba_groups", m.groups);
  check_positive(where, "mamba_state", m.state);
  check_positive(where, "mamba_conv", m.conv_kernel);
  check_positive(where, "mamba_chunk", m.chunk);
  check_usage(m.heads % m.groups == 0, "model: {}mamba_heads = {} must be a multiple of mamba_groups = {}",
              where, m.heads, m.groups);
  check_usage(m.norm_groups > 0 && m.inner() % m.norm_groups == 0,
              "model: {}the inner width {} must be a multiple of the {} groups of its norm", where, m.inner(),
              m.norm_groups);
}

}  // namespace

const char* mixer_name(const MixerSpec& mixer) {
  if (std::holds_alternative<AttentionSpec>(mixer)) return "attention";
  return std::holds_alternative<MlpSpec>(mixer) ? "mlp" : "mamba";
}

std::string sublayer_name(const DecoderSpec& spec, std::size_t i) {
  const SublayerSpec& sublayer = spec.sublayers.at(i);
  return fmt::format("blocks.{}.{}", sublayer.block, mixer_name(sublayer.mixer));
}

std::string pattern(const DecoderSpec& spec) {
  std::string out;
  for (const SublayerSpec& sublayer : spec.sublayers) {
    const bool attention = std::holds_alternative<AttentionSpec>(sublayer.mixer);
    out += attention ? '*' : std::holds_alternative<MlpSpec>(sublayer.mixer) ? '-' : 'M';
  }
  return out;
}

void check_spec(const DecoderSpec& spec) {
  check_positive("", "vocab_size", spec.vocab);
  check_positive("", "hidden", spec.d_model);
  check_positive("", "max_sequence", spec.max_seq);
  check_usage(!spec.sublayers.empty(), "model: it has no blocks");
  check_usage(spec.norm_eps > 0, "model: norm_eps = {} must be positive", spec.norm_eps);
  check_usage(spec.init_sigma > 0, "model: init_sigma = {} must be positive", spec.init_sigma);
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const std::string where = sublayer_name(spec, i) + ": ";
    std::visit([&](const auto& mixer) { check_mixer(where, mixer); }, spec.sublayers[i].mixer);
  }
}

}  // namespace nibble
