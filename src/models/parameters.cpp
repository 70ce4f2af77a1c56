// SPDX-License-Identifier: Apache-2.0
#include "models/parameters.h"

#include <cmath>

#include "base/error.h"

namespace nibble {
namespace {

using Shape = std::vector<std::int64_t>;

/// Appends the parameters of one sublayer after another.
class ParameterList {
 public:
  explicit ParameterList(const DecoderSpec& spec)
      : d_(spec.d_model),
        sigma_(spec.init_sigma),
        residual_sigma_(spec.init_sigma / std::sqrt(static_cast<double>(spec.sublayers.size()))) {}

  void matrix(const std::string& name, std::int64_t rows, std::int64_t columns, bool residual) {
    params_.push_back(
        {name, Shape{rows, columns}, InitKind::Normal, residual ? residual_sigma_ : sigma_, true, true});
  }
  void vector(const std::string& name, std::int64_t size, InitKind init, double scale = 0) {
    params_.push_back({name, Shape{size}, init, scale, false, false});
  }
  void embedding(const std::string& name, std::int64_t vocab, bool is_head) {
    params_.push_back({name, Shape{vocab, d_}, InitKind::Normal, sigma_, true, is_head});
  }

  void mixer(const std::string& p, const AttentionSpec& a) {
    const std::int64_t rows = (a.heads + 2 * a.kv_heads) * a.head_dim;
    matrix(p + ".qkv.weight", rows, d_, false);
    if (a.qkv_bias) vector(p + ".qkv.bias", rows, InitKind::Zeros);
    matrix(p + ".out.weight", d_, a.heads * a.head_dim, true);
  }
  void mixer(const std::string& p, const MlpSpec& m) {
    matrix(p + ".up.weight", m.activation == Activation::SwiGlu ? 2 * m.hidden : m.hidden, d_, false);
    matrix(p + ".down.weight", d_, m.hidden, true);
  }
  void mixer(const std::string& p, const Mamba2Spec& m) {
    const double bound = 1 / std::sqrt(static_cast<double>(m.conv_kernel));
    matrix(p + ".in.weight", m.in_rows(), d_, false);
    params_.push_back(
        {p + ".conv.weight", Shape{m.conv_channels(), m.conv_kernel}, InitKind::Uniform, bound, true, false});
    if (m.conv_bias) vector(p + ".conv.bias", m.conv_channels(), InitKind::Uniform, bound);
    vector(p + ".dt_bias", m.heads, InitKind::DtBias);
    vector(p + ".A_log", m.heads, InitKind::ALog);
    vector(p + ".D", m.heads, InitKind::Ones);
    vector(p + ".gated_norm.weight", m.inner(), InitKind::Ones);
    matrix(p + ".out.weight", d_, m.inner(), true);
  }

  std::vector<ParamInfo> take() { return std::move(params_); }

 private:
  std::int64_t d_;
  double sigma_, residual_sigma_;
  std::vector<ParamInfo> params_;
};

struct LinearShape {
  const char* name;
  std::int64_t n, k;
};

std::vector<LinearShape> linear_shapes(std::int64_t d, const AttentionSpec& a) {
  return {{"qkv", (a.heads + 2 * a.kv_heads) * a.head_dim, d}, {"out", d, a.heads * a.head_dim}};
}
std::vector<LinearShape> linear_shapes(std::int64_t d, const MlpSpec& m) {
  return {{"up", m.activation == Activation::SwiGlu ? 2 * m.hidden : m.hidden, d}, {"down", d, m.hidden}};
}
std::vector<LinearShape> linear_shapes(std::int64_t d, const Mamba2Spec& m) {
  return {{"in", m.in_rows(), d}, {"out", d, m.inner()}};
}

}  // namespace

std::int64_t ParamInfo::size() const {
  std::int64_t product = 1;
  for (const std::int64_t n : shape) product *= n;
  return product;
}

std::vector<ParamInfo> parameters(const DecoderSpec& spec) {
  ParameterList list(spec);
  list.embedding("embedding.weight", spec.vocab, spec.tied);
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const std::string prefix = sublayer_name(spec, i);
    list.vector(prefix + ".norm.weight", spec.d_model, InitKind::Ones);
    std::visit([&](const auto& mixer) { list.mixer(prefix, mixer); }, spec.sublayers[i].mixer);
  }
  list.vector("final_norm.weight", spec.d_model, InitKind::Ones);
  if (!spec.tied) list.embedding("head.weight", spec.vocab, true);
  return list.take();
}

std::int64_t param_count(const DecoderSpec& spec) {
  std::int64_t count = 0;
  for (const ParamInfo& p : parameters(spec)) count += p.size();
  return count;
}

void check_attention(const Recipe& recipe, const DecoderSpec& spec, std::int64_t sequence) {
  bool found = false;
  for (const SublayerSpec& s : spec.sublayers) {
    const auto* attention = std::get_if<AttentionSpec>(&s.mixer);
    if (attention == nullptr) continue;
    check_attention(recipe, attention->head_dim, sequence);
    found = true;
  }
  check_usage(
      found || !recipe.attention.quantizes(),
      "precision.attention_qk and attention_pv name formats of attention, and this model has none; remove "
      "the keys, or choose a model with attention");
}

std::vector<LinearInfo> linears(const DecoderSpec& spec) {
  std::vector<LinearInfo> out;
  for (std::size_t i = 0; i < spec.sublayers.size(); ++i) {
    const SublayerSpec& sublayer = spec.sublayers[i];
    const auto shapes =
        std::visit([&](const auto& m) { return linear_shapes(spec.d_model, m); }, sublayer.mixer);
    for (const LinearShape& shape : shapes) {
      out.push_back({.name = sublayer_name(spec, i) + "." + shape.name,
                     .kind = std::string(mixer_name(sublayer.mixer)) + "." + shape.name,
                     .block = sublayer.block,
                     .blocks = spec.blocks(),
                     .n = shape.n,
                     .k = shape.k,
                     .position = static_cast<int>(out.size())});
    }
  }
  return out;
}

}  // namespace nibble
