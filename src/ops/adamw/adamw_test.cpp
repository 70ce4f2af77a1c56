// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "quant/amax.h"

namespace nibble {
namespace {

/// The formula of the header, written out for one element.
TEST(AdamW, ThreeStepsFollowTheFormula) {
  const double lr = 0.01, b1 = 0.9f, b2 = 0.95f, eps = 1e-8f, decay = 0.1f;
  const double grads[] = {0.5, -0.25, 0.125};
  for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu}) {
    HostDevice device;
    Stream stream(kind, device, 1);
    double w = 2, m = 0, v = 0;
    float fw = 2, fm = 0, fv = 0;
    bf16 copy;
    for (std::int64_t step = 1; step <= 3; ++step) {
      const auto grad = static_cast<float>(2 * grads[step - 1]);
      const double g = grads[step - 1];
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      const double mhat = m / (1 - std::pow(b1, step)), vhat = v / (1 - std::pow(b2, step));
      w -= lr * (mhat / (std::sqrt(vhat) + eps) + decay * w);
      const StepRecord record{.lr = static_cast<float>(lr),
                              .inverse_correction1 = static_cast<float>(1 / (1 - std::pow(b1, step))),
                              .inverse_correction2 = static_cast<float>(1 / (1 - std::pow(b2, step))),
                              .grad_scale = 0.5f};
      adamw(stream, {.w_N = View<float>(&fw, 1),
                     .m_N = View<float>(&fm, 1),
                     .v_N = View<float>(&fv, 1),
                     .grad_N = View<const float>(&grad, 1),
                     .copy_N = View<bf16>(&copy, 1),
                     .record = &record,
                     .weight_decay = 0.1f});
      EXPECT_NEAR(fw, w, 1e-6 * w) << "step " << step;
      EXPECT_NEAR(fm, m, 1e-6 * std::abs(m)) << "step " << step;
      EXPECT_NEAR(fv, v, 1e-6 * v) << "step " << step;
      EXPECT_EQ(copy, bf16::nearest(fw));
    }
  }
}

/// Three tensors of odd sizes.
TEST(AdamW, AmaxIsTheLargestMagnitudeOfATensorsCopyAlsoWhenHalted) {
  constexpr std::int64_t kN = 80;
  const std::int32_t starts[] = {0, 2, 3, static_cast<std::int32_t>(kN / kDecayGroup)};
  for (BackendKind kind : {BackendKind::Ref, BackendKind::Cpu})
    for (const float peak : {-3.001f, 3.4e38f, -INFINITY, NAN})
      for (const std::uint32_t halted : {0u, 1u}) {
        HostDevice device;
        Stream stream(kind, device, 1);
        std::vector<float> w(kN, 0.5f), m(kN, 0.1f), v(kN, 0.2f), grad(kN, 0.3f), amaxes(3, 7.0f);
        std::vector<bf16> copy(kN, bf16::nearest(0.5f));
        w[19] = peak, w[40] = 100, w[70] = -2.003f;
        copy[19] = bf16::nearest(peak), copy[40] = bf16::nearest(100), copy[70] = bf16::nearest(-2.003f);
        const StepRecord record{.lr = 1e-3f,
                                .inverse_correction1 = 2,
                                .inverse_correction2 = 2,
                                .grad_scale = 1,
                                .halted = halted};
        adamw(stream, {.w_N = View<float>(w.data(), kN),
                       .m_N = View<float>(m.data(), kN),
                       .v_N = View<float>(v.data(), kN),
                       .grad_N = View<const float>(grad.data(), kN),
                       .copy_N = View<bf16>(copy.data(), kN),
                       .record = &record,
                       .starts_S = View<const std::int32_t>(starts, 3),
                       .amaxes_S = View<float>(amaxes.data(), 3)});
        float expected[3] = {};
        for (int t = 0; t < 3; ++t)
          for (std::int64_t i = starts[t] * kDecayGroup; i < starts[t + 1] * kDecayGroup; ++i)
            expected[t] = amax_keeping_nan(expected[t], copy[static_cast<std::size_t>(i)].value());
        for (int t = 0; t < 3; ++t)
          EXPECT_EQ(float_bits(amaxes[static_cast<std::size_t>(t)]), float_bits(expected[t]))
              << name_of(kind) << " peak " << peak << " halted " << halted << " tensor " << t;
        EXPECT_EQ(std::isfinite(expected[0]), peak == -3.001f) << "a NaN or an infinity comes through";
      }
}

TEST(GateUpdate, ANumberThatIsNotFiniteOrAFaultyOperandHaltsThisUpdateAndAllLaterOnes) {
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  StepRecord bad{.loss_sum = 1, .grad_squares = NAN};
  gate_update(stream, {.record = &bad, .clip = 1});
  EXPECT_EQ(bad.halted, 1u);
  bad.grad_squares = 4;
  gate_update(stream, {.record = &bad, .clip = 1});
  EXPECT_EQ(bad.halted, 1u) << "halted stays";
  StepRecord good{.loss_sum = 1, .grad_squares = 4};
  gate_update(stream, {.record = &good, .clip = 1});
  EXPECT_EQ(good.halted, 0u);
  EXPECT_NEAR(good.grad_scale, 0.5, 1e-6);
}

}  // namespace
}  // namespace nibble
