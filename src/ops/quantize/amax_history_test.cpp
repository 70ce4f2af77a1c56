// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/amax_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quant/fp8_tensor.h"

namespace nibble {
namespace {

/// One operand through some steps: the amaxes under which it was quantised.
struct Operand {
  std::vector<float> history;
  float pending = 0, used = 0;
  HostDevice device;
  Stream stream{BackendKind::Ref, device, 1};

  explicit Operand(std::int64_t length) : history(static_cast<std::size_t>(length), 0.0f) {}
  float choose(std::uint32_t step, float found, AmaxRule rule, int margin = 0) {
    choose_amax(stream, {.found = &found,
                         .history_L = View<const float>(history.data(), std::ssize(history)),
                         .rule = rule,
                         .start = E4M3::kMax,
                         .margin = margin,
                         .step = step,
                         .pending = &pending,
                         .used = &used});
    return used;
  }
  void push(std::uint32_t step, std::uint32_t halted = 0) {
    push_amax(stream, {.pending_S = View<float>(&pending, std::int64_t{1}),
                       .history_SL = View<float>(history.data(), std::int64_t{1}, std::ssize(history)),
                       .step = step,
                       .halted = &halted});
  }
};

/// Transformer Engine's rule in its own words: a scale, updated after a step from the window's maximum.
struct TransformerEngineScale {
  std::vector<float> window;
  float scale = 1;
  void update(float amax, std::size_t length, int margin) {
    window.push_back(amax);
    if (window.size() > length) window.erase(window.begin());
    const float most = *std::max_element(window.begin(), window.end());
    if (most > 0 && std::isfinite(most)) scale = (E4M3::kMax / most) / std::ldexp(1.0f, margin);
  }
};

TEST(AmaxHistory, DelayedIsTransformerEnginesScaleToTheBit) {
  constexpr float kAmaxes[] = {0, 0, 3.25f, 0.1f, 7e-6f, 7e-6f, 7e-6f, 0,    0,
                               0, 0, 11,    5,    2,     0.3f,  0.3f,  1e30f};
  for (const std::int64_t length : {1, 3, 16})
    for (const int margin : {0, 2, -1}) {
      Operand operand(length);
      TransformerEngineScale te;
      std::uint32_t step = 0;
      for (const float amax : kAmaxes) {
        const float used = operand.choose(step, amax, AmaxRule::Delayed, margin);
        EXPECT_EQ(Fp8Scale::from_amax<E4M3>(used, kFloatMax).encode, te.scale)
            << "length " << length << ", margin " << margin << ", step " << step;
        operand.push(step++);
        te.update(amax, static_cast<std::size_t>(length), margin);
      }
    }
}

TEST(AmaxHistory, AStepKeepsTheLargestOfItsMicroBatches) {
  Operand operand(4);
  operand.choose(0, 9, AmaxRule::Delayed);
  operand.choose(0, 2, AmaxRule::Delayed);
  operand.choose(0, 2, AmaxRule::Delayed);  // recomputed
  operand.push(0);
  EXPECT_EQ(operand.history[0], 9);
  EXPECT_EQ(operand.choose(1, 1, AmaxRule::Delayed), 9);
  EXPECT_EQ(operand.choose(1, 50, AmaxRule::Delayed), 9);  // not before the step is over
}

TEST(AmaxHistory, PreviousIsTheStepBefore) {
  for (const std::int64_t length : {1, 5}) {
    Operand operand(length);
    EXPECT_EQ(operand.choose(0, 3, AmaxRule::Previous), 3);  // the first step: its own
    operand.push(0);
    EXPECT_EQ(operand.choose(1, 8, AmaxRule::Previous), 3);
    operand.push(1);
    EXPECT_EQ(operand.choose(2, 1, AmaxRule::Previous), 8);
    operand.push(2);
    operand.push(3);  // a step without this operand
    EXPECT_EQ(operand.choose(4, 6, AmaxRule::Previous), 6);
  }
}

TEST(AmaxHistory, AHaltedStepLeavesNoTrace) {
  Operand operand(3);
  operand.choose(0, 2, AmaxRule::Delayed);
  operand.push(0);
  operand.choose(1, std::numeric_limits<float>::infinity(), AmaxRule::Delayed);
  operand.push(1, 1);
  EXPECT_EQ(operand.history, (std::vector<float>{2, 0, 0}));
  EXPECT_EQ(operand.pending, 0);
}

TEST(AmaxHistory, RefusesWhatDoesNotFit) {
  Operand operand(2);
  EXPECT_THROW(operand.choose(0, 1, AmaxRule::Delayed, 100), Error);
  const ChooseAmax nothing{};
  EXPECT_THROW(check(nothing), Error);
  float pending = 0, history = 0;
  EXPECT_THROW(check(PushAmax{.pending_S = View<float>(&pending, std::int64_t{1}),
                              .history_SL = View<float>(&history, std::int64_t{2}, std::int64_t{1})}),
               Error);
}

}  // namespace
}  // namespace nibble
