// SPDX-License-Identifier: Apache-2.0
#include "plan/workload.h"

#include <algorithm>

#include "base/error.h"
#include "models/parameters.h"

namespace nibble {
namespace {

double width(std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

void add_attention(const AttentionSpec& a, Workload& w) {
  w.heads = a.heads;
  w.kv_heads = a.kv_heads;
  w.attention_width += width(a.heads, a.head_dim);
  w.qkv_width += width(a.heads + 2 * a.kv_heads, a.head_dim);
}

void add_mlp(const MlpSpec& m, Workload& w) {
  w.ffn_quantum = w.ffn_quantum == 0 ? m.hidden : std::min(w.ffn_quantum, m.hidden);
  (m.activation == Activation::SwiGlu ? w.swiglu_width : w.relu2_width) += static_cast<double>(m.hidden);
}

void add_scan(const Mamba2Spec& m, Workload& w) {
  w.scan_inner += static_cast<double>(m.inner());
  w.scan_state += width(m.inner(), m.state);
  w.scan_chunk += width(m.inner(), m.state) / static_cast<double>(m.chunk);
  w.conv_width += static_cast<double>(m.conv_channels());
}

std::vector<LinearInfo> dense_sizes(const DecoderSpec& spec, Workload& w) {
  w.blocks = spec.blocks();
  w.d_model = spec.d_model;
  w.vocab = spec.vocab;
  w.sublayers = static_cast<int>(spec.sublayers.size());
  for (const SublayerSpec& s : spec.sublayers) {
    if (const auto* a = std::get_if<AttentionSpec>(&s.mixer)) add_attention(*a, w);
    if (const auto* m = std::get_if<MlpSpec>(&s.mixer)) add_mlp(*m, w);
    if (const auto* m = std::get_if<Mamba2Spec>(&s.mixer)) add_scan(*m, w);
  }
  std::vector<LinearInfo> all = linears(spec);
  for (const LinearInfo& l : all) w.linear_parameters += width(l.n, l.k);
  w.matmul_parameters = w.linear_parameters + width(spec.vocab, spec.d_model);
  return all;
}

/// Only totals are known of a sparse model, so each block is one linear of the average size that a token
/// meets.
std::vector<LinearInfo> sparse_sizes(const SparseModel& m, Workload& w) {
  w.exact = false;
  w.blocks = m.blocks;
  w.d_model = m.d_model;
  w.vocab = m.vocab;
  w.sublayers = static_cast<int>(2 * m.blocks);
  w.attention_width = width(m.attention_blocks, m.attention_width);
  w.qkv_width = 1.5 * w.attention_width;
  w.swiglu_width = width(m.blocks, m.top_k * m.expert_hidden);
  w.dispatch_width = width(m.blocks, m.top_k * m.d_model);
  const double embeddings = 2 * width(m.vocab, m.d_model);
  w.linear_parameters = m.total_parameters - embeddings;
  const double active = m.active_parameters - embeddings;
  w.matmul_parameters = active + width(m.vocab, m.d_model);
  std::vector<LinearInfo> all;
  const auto rows = static_cast<std::int64_t>(active / width(m.blocks, m.d_model) / 32) * 32;
  for (int b = 0; b < m.blocks; ++b) {
    all.push_back({.name = "blocks." + std::to_string(b) + ".experts.all",
                   .kind = "experts.all",
                   .block = b,
                   .blocks = static_cast<int>(m.blocks),
                   .n = rows,
                   .k = m.d_model,
                   .position = b});
  }
  return all;
}

}  // namespace

std::int64_t plan_parameters(const PlanModel& model) {
  if (model.sparse) return static_cast<std::int64_t>(model.sparse->total_parameters);
  return param_count(*model.dense) + model.extra_parameters;
}

double Workload::linear_flops() const {
  return 6.0 * (matmul_parameters - static_cast<double>(vocab) * static_cast<double>(d_model));
}

Rate rate_of(const GemmRecipe& gemm) {
  const auto one = [](Format f) {
    switch (f) {
      case Format::Nvfp4:
      case Format::Mxfp4:
        return Rate::Fp4;
      case Format::Mxfp8E4M3:
      case Format::Mxfp8E5M2:
      case Format::Mxfp6E2M3:
      case Format::Mxfp6E3M2:
        return Rate::Mxfp8;
      case Format::Fp8E4M3:
      case Format::Fp8E5M2:
      case Format::Fp8BlockE4M3:
      case Format::Fp8BlockFp32E4M3:
        return Rate::Fp8;
      default:
        return Rate::Bf16;
    }
  };
  const Rate a = one(gemm.a.format), b = one(gemm.b.format);
  return a == b ? a : Rate::Bf16;
}

RateShares linear_shares(const Workload& work) {
  RateShares shares;
  double all = 0;
  for (const LinearWork& l : work.linears) {
    for (const Gemm g : kGemms) {
      const double size = width(l.info.n, l.info.k);
      shares.share[static_cast<int>(rate_of(l.resolved.gemm(g)))] += size;
      all += size;
    }
  }
  for (double& s : shares.share) s /= all;
  return shares;
}

Recipe recipe_for(const PlanModel& model, const Recipe& recipe) {
  if (!quantizes(recipe) || recipe.of_blocks == 0) return recipe;
  RecipeEdits edits;
  if (!recipe.first_blocks) edits.bf16_first = model.bf16_first;
  if (!recipe.last_blocks) edits.bf16_last = model.bf16_last;
  return edited(recipe, edits);
}

Workload make_workload(const PlanModel& model, const Recipe& recipe, std::int64_t tokens, std::int64_t step) {
  Workload w;
  w.model = model.name;
  w.recipe = recipe.name;
  w.residual_gradient_bytes = recipe.residual_gradient == Format::Bf16 ? 2 : 4 + 2;
  const std::vector<LinearInfo> all =
      model.dense ? dense_sizes(*model.dense, w) : sparse_sizes(*model.sparse, w);
  w.parameters = static_cast<double>(plan_parameters(model));
  check_recipe(recipe, all, tokens);
  for (const LinearInfo& l : all) w.linears.push_back({l, resolve(recipe, l, step)});
  return w;
}

}  // namespace nibble
