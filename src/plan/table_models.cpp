// SPDX-License-Identifier: Apache-2.0
// Models that can be planned but not trained here: larger ones of the Llama family, models with parts that
// the decoder has no word for, and mixtures of experts by their published totals.
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "models/registry.h"
#include "plan/workload.h"

namespace nibble {
namespace {

struct LlamaRow {
  const char *name, *summary;
  std::int64_t blocks, hidden, ffn, heads, kv_heads, head_dim, vocab;
  bool tied;
};

constexpr LlamaRow kLlama[] = {
    {"llama-3.2-1b", "Llama 3.2 1B [LLAMA3]", 16, 2048, 8192, 32, 8, 64, 128256, true},
    {"llama-3-70b", "Llama 3 and 3.1 70B [LLAMA3]", 80, 8192, 28672, 64, 8, 128, 128256, false},
    {"llama-3.1-405b", "Llama 3.1 405B [LLAMA3]", 126, 16384, 53248, 128, 8, 128, 128256, false},
};

constexpr LlamaRow kQwen3[] = {
    {"qwen3-0.6b", "Qwen3 0.6B [QWEN]", 28, 1024, 3072, 16, 8, 128, 151936, true},
    {"qwen3-8b", "Qwen3 8B [QWEN]", 36, 4096, 12288, 32, 8, 128, 151936, false},
};

PlanModel llama(const LlamaRow& r) {
  return {.name = r.name,
          .summary = r.summary,
          .dense = make_spec({.blocks = r.blocks,
                              .vocab_size = r.vocab,
                              .hidden = r.hidden,
                              .ffn = r.ffn,
                              .heads = r.heads,
                              .kv_heads = r.kv_heads,
                              .head_dim = r.head_dim,
                              .max_sequence = 8192,
                              .activation = "swiglu",
                              .tied = r.tied,
                              .rope_theta = 500000})};
}

PlanModel qwen3(const LlamaRow& r) {
  PlanModel model = llama(r);
  model.extra_parameters = 2 * r.head_dim * r.blocks;
  model.extra_what = "norms of queries and keys";
  return model;
}

/// GPT-2: a two-matrix MLP, biases on all four linears and norms, learned positions, tied head.
PlanModel gpt2(const char* name, std::int64_t blocks, std::int64_t d, std::int64_t heads) {
  const std::int64_t positions = 1024 * d, norms = (2 * blocks + 1) * d,
                     biases = blocks * (3 * d + d + 4 * d + d);
  return {.name = name,
          .summary = "GPT-2, squared ReLU standing in for GELU",
          .dense = make_spec({.blocks = blocks,
                              .vocab_size = 50257,
                              .hidden = d,
                              .ffn = 4 * d,
                              .heads = heads,
                              .max_sequence = 1024,
                              .activation = "relu2",
                              .tied = true}),
          .extra_parameters = positions + norms + biases,
          .extra_what = "learned positions, biases of linears and norms"};
}

struct SparseRow {
  const char* name;
  SparseModel model;
};

// total, active, blocks, d, vocabulary, attention blocks, heads * head_dim, experts a token, width of an
// expert.
constexpr SparseRow kSparse[] = {
    {"deepseek-v3", {671e9, 37e9, 61, 7168, 129280, 61, 128 * 160, 9, 2048}},
    {"gpt-oss-120b", {116.8e9, 5.7e9, 36, 2880, 201088, 27, 64 * 64, 4, 2880}},
    {"qwen3-30b-a3b", {30.5e9, 3.3e9, 48, 2048, 151936, 48, 32 * 128, 8, 768}},
    {"qwen3-235b-a22b", {235e9, 22e9, 94, 4096, 151936, 94, 64 * 128, 8, 1536}},
    {"kimi-k2", {1026e9, 32.6e9, 61, 7168, 163840, 61, 64 * 160, 9, 2048}},
    {"nemotron-3-nano", {31.6e9, 3.6e9, 52, 2688, 131072, 6, 32 * 128, 6, 1856}},
    {"nemotron-3-super", {120e9, 12.7e9, 88, 4096, 131072, 8, 32 * 128, 22, 2688}},
    {"nemotron-3-ultra", {550e9, 55e9, 108, 8192, 131072, 12, 64 * 128, 22, 5120}},
};

}  // namespace

std::vector<PlanModel> plan_only_models() {
  std::vector<PlanModel> all;
  for (const LlamaRow& r : kLlama) all.push_back(llama(r));
  for (const LlamaRow& r : kQwen3) all.push_back(qwen3(r));
  all.push_back(gpt2("gpt2-124m", 12, 768, 12));
  all.push_back(gpt2("gpt2-1558m", 48, 1600, 25));
  for (const SparseRow& r : kSparse) {
    all.push_back(
        {.name = r.name, .summary = "mixture of experts, by its published totals", .sparse = r.model});
  }
  return all;
}

PlanModel find_plan_model(std::string_view wanted) {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == wanted) {
      return {.name = preset.name,
              .summary = preset.summary,
              .dense = make_spec(preset.fields),
              .bf16_first = preset.bf16_first,
              .bf16_last = preset.bf16_last};
    }
    names.push_back(preset.name);
  }
  for (PlanModel& model : plan_only_models()) {
    if (model.name == wanted) return std::move(model);
    names.push_back(model.name);
  }
  fail_usage("there is no model \"{}\"{} The planner knows: {}.", wanted, did_you_mean(wanted, names),
             fmt::join(names, ", "));
}

}  // namespace nibble
