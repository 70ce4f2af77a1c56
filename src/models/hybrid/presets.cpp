// SPDX-License-Identifier: Apache-2.0
#include "models/presets.h"

namespace nibble {
namespace {

constexpr const char* kPattern12b = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-";
constexpr const char* kPattern8b = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";

const ModelFields k12b{.pattern = kPattern12b,
                       .vocab_size = 131072,
                       .hidden = 5120,
                       .ffn = 20480,
                       .heads = 40,
                       .kv_heads = 8,
                       .head_dim = 128,
                       .max_sequence = 8192,
                       .activation = "relu2",
                       .tied = false,
                       .mamba_heads = 128,
                       .mamba_head_dim = 80,
                       .mamba_groups = 8,
                       .mamba_state = 128,
                       .mamba_conv = 4,
                       .mamba_chunk = 128,
                       .norm_eps = 1e-5,
                       .init_sigma = 0.0125};
const ModelFields k8b{.pattern = kPattern8b,
                      .vocab_size = 131072,
                      .hidden = 4096,
                      .ffn = 21504,
                      .heads = 32,
                      .kv_heads = 8,
                      .head_dim = 128,
                      .max_sequence = 8192,
                      .activation = "relu2",
                      .tied = false,
                      .mamba_heads = 128,
                      .mamba_head_dim = 64,
                      .mamba_groups = 8,
                      .mamba_state = 128,
                      .mamba_conv = 4,
                      .mamba_chunk = 128,
                      .norm_eps = 1e-5,
                      .init_sigma = 0.0125};
const ModelFields k1b{.pattern = "M-M-M*-M-M-M-M*-M-M-M-M*-M-",
                      .vocab_size = 50304,
                      .hidden = 2048,
                      .ffn = 8192,
                      .heads = 16,
                      .kv_heads = 8,
                      .head_dim = 128,
                      .max_sequence = 4096,
                      .activation = "relu2",
                      .tied = false,
                      .mamba_heads = 64,
                      .mamba_head_dim = 64,
                      .mamba_groups = 8,
                      .mamba_state = 128,
                      .mamba_conv = 4,
                      .mamba_chunk = 128,
                      .norm_eps = 1e-5};
// Every dimension is a multiple of 32, so that the MX formats take these models as well as NVFP4.
const ModelFields kTiny{.pattern = "M-M*-M-",
                        .vocab_size = 1024,
                        .hidden = 192,
                        .ffn = 768,
                        .heads = 6,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .max_sequence = 2048,
                        .activation = "relu2",
                        .tied = false,
                        .mamba_heads = 32,
                        .mamba_head_dim = 16,
                        .mamba_groups = 2,
                        .mamba_state = 32,
                        .mamba_conv = 4,
                        .mamba_chunk = 64,
                        .norm_eps = 1e-5};
// One group: transformers changed what the gated norm of this family does with several, between 5.17
// and 5.24.
const ModelFields kMambaTiny{.pattern = "MMMM",
                             .vocab_size = 1024,
                             .hidden = 256,
                             .max_sequence = 2048,
                             .tied = false,
                             .mamba_heads = 32,
                             .mamba_head_dim = 16,
                             .mamba_groups = 1,
                             .mamba_state = 32,
                             .mamba_conv = 4,
                             .mamba_chunk = 64,
                             .norm_eps = 1e-5};

ModelFields with(ModelFields base, const ModelFields& over) { return merged(std::move(base), over); }

}  // namespace

std::vector<ModelPreset> hybrid_presets() {
  return {
      {.name = "paper-12b",
       .summary = "the NVFP4 paper's 12B hybrid: 160 Mamba heads of 64 [NVFP4]",
       .fields = with(k12b, {.mamba_heads = 160, .mamba_head_dim = 64})},
      {.name = "nemotron-nano-12b-v2",
       .summary = "NVIDIA Nemotron Nano 12B v2 as published: 128 Mamba heads of 80 [NEMOTRON]",
       .fields = k12b},
      {.name = "paper-8b",
       .summary = "the NVFP4 paper's 8B hybrid: 4 KV heads [NVFP4]",
       .fields = with(k8b, {.kv_heads = 4}),
       .bf16_first = 0,
       .bf16_last = 8},
      {.name = "nemotron-h-8b",
       .summary = "Nemotron-H 8B as published: 8 KV heads [NEMOTRON]",
       .fields = k8b},
      {.name = "hybrid-1b", .summary = "speed row: 27 blocks, 1.0B parameters", .fields = k1b},
      {.name = "hybrid-tiny", .summary = "2.2M matmul parameters: the quickstart's model", .fields = kTiny},
      {.name = "mamba-tiny", .summary = "1.9M matmul parameters, Mamba-2 blocks alone", .fields = kMambaTiny},
  };
}

}  // namespace nibble
