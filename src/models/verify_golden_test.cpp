// SPDX-License-Identifier: Apache-2.0
// Tiny random models of each family, with logits, loss and gradients from transformers in FP32
// (tests/golden/README.md): the same numbers must come out of both host backends.
#include "models/verify.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

struct Case {
  const char* model;
  BackendKind backend;
};

class VerifyModel : public testing::TestWithParam<Case> {};

std::filesystem::path folder(const char* model) {
  return std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/golden/models" / model;
}

TEST_P(VerifyModel, LogitsLossAndEveryGradientAreInsideTheFp32Bounds) {
  HostDevice host;
  Stream stream(GetParam().backend, host, 2);
  const std::filesystem::path dir = folder(GetParam().model);
  const VerifyReport r = verify_model(dir, dir / "golden.safetensors", stream, find_recipe("fp32"));
  EXPECT_LE(r.logit_error, VerifyReport::kLogitBound);
  EXPECT_LE(r.loss_error, VerifyReport::kLossBound) << r.loss << " against " << r.golden_loss;
  ASSERT_GT(r.gradients.size(), 10u);
  for (const auto& g : r.gradients) EXPECT_LE(g.error, VerifyReport::kGradBound) << g.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* m : {"llama", "llama3_rope", "qwen2", "nemotron_h", "mamba2"})
    for (BackendKind b : {BackendKind::Ref, BackendKind::Cpu}) all.push_back({m, b});
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, VerifyModel, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.model) + "_" + std::string(name_of(info.param.backend));
});

TEST(VerifyModel, AWrongWeightIsSeen) {
  // The rope model's weights under the plain model's golden numbers: the bounds must not hold.
  HostDevice host;
  Stream stream(BackendKind::Cpu, host, 2);
  const VerifyReport r = verify_model(folder("llama3_rope"), folder("llama") / "golden.safetensors", stream,
                                      find_recipe("fp32"));
  EXPECT_FALSE(r.inside_bounds());
}

}  // namespace
}  // namespace nibble
