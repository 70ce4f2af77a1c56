// SPDX-License-Identifier: Apache-2.0
// Attention in FP8 and NVFP4 inside training steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "layers/linear.h"
#include "models/parameters.h"
#include "train/learner.h"
#include "train/setup.h"
#include "train/tiny_model.h"

namespace nibble {
namespace {

constexpr std::int64_t kSequence = 32, kBatch = 2, kVocab = 96;

struct Trained {
  std::string weights;
  double loss = 0;
};

Trained train(const Recipe& recipe, BackendKind backend = BackendKind::Cpu,
              Recomputation recompute = Recomputation::None, int steps = 2) {
  HostDevice host;
  Stream stream(backend, host, 2);
  Learner learner(stream, {.model = tiny_model(3, kVocab, kSequence),
                           .recipe = recipe,
                           .optimizer = {},
                           .schedule = {.peak = 1e-3, .steps = 10},
                           .sequence = kSequence,
                           .batch = kBatch,
                           .micro_batch = 1,
                           .recompute = recompute,
                           .seed = 5,
                           .sr_seed = 6});
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(kBatch * kSequence + 1);
  Trained out;
  for (int i = 0; i < steps; ++i) {
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % kVocab);
    out.loss = learner
                   .step(View<const std::int32_t>(ids.data(), kBatch * kSequence),
                         View<const std::int32_t>(ids.data() + 1, kBatch * kSequence), nullptr)
                   .loss;
  }
  out.weights = weights_hash(learner.params());
  return out;
}

Recipe with(const char* base, std::optional<Format> qk, std::optional<Format> pv,
            std::optional<bool> backward = {}) {
  return edited(find_recipe(base), {.attention_qk = qk, .attention_pv = pv, .attention_backward = backward});
}

TEST(AttentionFormats, Bf16IsTheRunWithoutThem) {
  EXPECT_EQ(train(with("nvfp4", Format::Bf16, Format::Bf16)).weights, train(find_recipe("nvfp4")).weights);
}

TEST(AttentionFormats, EverySwitchChangesTheRunAndKeepsItsLossNear) {
  const Trained plain = train(find_recipe("bf16"));
  std::vector<std::string> seen = {plain.weights};
  const std::optional<Format> none, fp8 = Format::Fp8E4M3, fp4 = Format::Nvfp4;
  for (const Recipe& recipe : {with("bf16", fp8, none), with("bf16", none, fp8), with("bf16", fp8, fp8),
                               with("bf16", fp4, none), with("bf16", none, fp4), with("bf16", fp4, fp8),
                               with("bf16", fp4, fp4), with("bf16", fp4, fp4, false)}) {
    const Trained t = train(recipe);
    EXPECT_NEAR(t.loss, plain.loss, 0.02 * plain.loss);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), t.weights), 0);
    seen.push_back(t.weights);
  }
}

TEST(AttentionFormats, RefAndCpuAndRecomputationAgree) {
  const Recipe recipe = with("bf16", Format::Nvfp4, Format::Fp8E4M3);
  const Trained cpu = train(recipe);
  EXPECT_EQ(train(recipe, BackendKind::Cpu, Recomputation::Block).weights, cpu.weights);
  EXPECT_NEAR(train(recipe, BackendKind::Ref, Recomputation::None, 1).loss,
              train(recipe, BackendKind::Cpu, Recomputation::None, 1).loss, 1e-3);
}

TEST(AttentionFormats, KeptBlocksKeepTheirAttention) {
  const Recipe recipe = with("nvfp4", Format::Fp8E4M3, {});
  const KeptBlocks kept = kept_blocks(recipe, 20);
  EXPECT_FALSE(attention_of(recipe, kept.first - 1, 20).quantizes());
  EXPECT_TRUE(attention_of(recipe, kept.first, 20).quantizes());
  EXPECT_TRUE(attention_of(recipe, 19 - kept.last, 20).quantizes());
  EXPECT_FALSE(attention_of(recipe, 20 - kept.last, 20).quantizes());
}

TEST(AttentionFormats, WhatBlocksDoNotDivideIsRefused) {
  EXPECT_THROW(train(with("bf16", Format::Mxfp8E4M3, {})), Error);  // heads of 16
  EXPECT_THROW(with("bf16", {}, {}, false), Error);                 // nothing to be backward of
  EXPECT_THROW(check_attention(with("bf16", {}, Format::Nvfp4), 64, 100), Error);
  EXPECT_NO_THROW(check_attention(with("bf16", {}, Format::Fp8E4M3), 33, 100));
  DecoderSpec without = tiny_model(3, kVocab, kSequence);
  std::erase_if(without.sublayers,
                [](const SublayerSpec& s) { return std::holds_alternative<AttentionSpec>(s.mixer); });
  EXPECT_THROW(check_attention(with("bf16", {}, Format::Fp8E4M3), without, kSequence), Error);
  EXPECT_NO_THROW(check_attention(find_recipe("bf16"), without, kSequence));
}

TEST(AttentionFormats, ExplainSaysIt) {
  const std::vector<LinearInfo> all = linears(tiny_model(3, kVocab, kSequence));
  const std::string text = explain(with("bf16", Format::Fp8E4M3, Format::Nvfp4), all, 0, 0);
  EXPECT_NE(text.find("q k^T in fp8_e4m3, P v in nvfp4"), std::string::npos) << text;
  EXPECT_EQ(explain(find_recipe("bf16"), all, 0, 0).find("q k^T"), std::string::npos);
}

TEST(AttentionFormats, AFaultNamesItsOperand) {
  const std::vector<LinearInfo> all = linears(tiny_model(3, kVocab, kSequence));
  const std::string text = fault_sentence(7, all, attention_fault_id(all[4], 3), "a NaN");
  EXPECT_NE(text.find("step 7"), std::string::npos);
  EXPECT_NE(text.find("the attention operand dout holds a NaN"), std::string::npos) << text;
  EXPECT_NE(text.find(all[4].name), std::string::npos) << text;
}

}  // namespace
}  // namespace nibble
