// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/rms_norm.h"

namespace nibble {
namespace {

class Checks : public ::testing::Test {
 protected:
  /// What the op says when it refuses.
  template <class Args>
  std::string refusal(const Op<Args>& op, const Args& args) {
    try {
      op(stream_, args);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  HostDevice device_;
  Stream stream_{BackendKind::Ref, device_, 1};
  std::vector<float> memory_ = std::vector<float>(64);
  std::vector<bf16> half_ = std::vector<bf16>(64);
};

using ::testing::HasSubstr;

TEST_F(Checks, MatMulRefusesWhatDoesNotFit) {
  const View<float> x(memory_.data(), 4, 6), y(memory_.data(), 3, 6), c(memory_.data(), 4, 3);
  EXPECT_EQ(refusal(matmul, {.a_MK = View<const float>(x), .b_NK = View<const float>(y), .c_MN = c}), "");
  EXPECT_THAT(refusal(matmul, {.a_MK = View<const float>(x), .b_NK = View<const float>(c), .c_MN = c}),
              HasSubstr("reduce over 6 and 3"));
  EXPECT_THAT(refusal(matmul, {.a_MK = View<const float>(x), .b_NK = View<const float>(y), .c_MN = x}),
              HasSubstr("axis 1 of c"));
  EXPECT_THAT(
      refusal(matmul,
              {.a_MK = View<const float>(x), .b_NK = View<const bf16>(half_.data(), 3, 6), .c_MN = c}),
      HasSubstr("cast one of them"));
  EXPECT_THAT(refusal(matmul, {.a_MK = View<const float>(x),
                               .b_NK = View<const float>(y),
                               .c_MN = View<bf16>(half_.data(), 4, 3),
                               .beta = 1}),
              HasSubstr("needs an FP32 result"));
}

template <class F>
std::string thrown(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

TEST(TokenChecks, TokensAndTargetsOutsideTheVocabularyAreNamed) {
  const std::vector<std::int32_t> ids = {0, 7, -1};
  const View<const std::int32_t> view(ids.data(), Layout::contiguous(3));
  EXPECT_THAT(thrown([&] { check_ids(view, 4); }),
              HasSubstr("token 7 at position 1 is outside the vocabulary of 4"));
  EXPECT_THAT(thrown([&] { check_ids(view, 8); }), HasSubstr("token -1 at position 2"));
  EXPECT_THAT(thrown([&] { check_targets(view, 4); }), HasSubstr("target 7 at position 1"));
  EXPECT_EQ(thrown([&] { check_targets(view, 8); }), "nothing") << "-1 is an ignored token";
}

TEST_F(Checks, GroupsMustDivideTheFeatures) {
  const View<float> x(memory_.data(), 2, 6), w(memory_.data(), 6), rstd(memory_.data(), 2, 4);
  EXPECT_THAT(refusal(gated_rms_norm, {.y_TD = View<const float>(x),
                                       .z_TD = View<const float>(x),
                                       .w_D = w,
                                       .out_TD = x,
                                       .rstd_TG = rstd,
                                       .groups = 4}),
              HasSubstr("6 features do not divide into 4 groups"));
}

TEST_F(Checks, ACopyOfTheGradientIsOneOfAnFp32Sum) {
  const View<float> x(memory_.data(), 2, 3), row(memory_.data(), 3), rstd(memory_.data(), 2);
  const RealView narrow(memory_.data(), DType::BF16, Layout::contiguous(2, 3));
  EXPECT_THAT(refusal(rms_norm_backward, {.x_TD = View<const float>(x),
                                          .w_D = row,
                                          .rstd_T = rstd,
                                          .dy_TD = View<const float>(x),
                                          .dx_TD = narrow,
                                          .dw_D = row,
                                          .dx_copy_TD = narrow}),
              HasSubstr("dx_copy is for a dx of F32, and this one is BF16"));
}

}  // namespace
}  // namespace nibble
