// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"
#include "ops/op.h"

namespace nibble {

/// Which amax an operand is quantised under, where that is not its own.
enum class AmaxRule : std::uint8_t {
  Delayed,   ///< the largest of the history, times 2^margin [TE]
  Previous,  ///< that of the step before; its own where that is 0 or not finite, as in the first step
  Fixed,     ///< `start`, always
};

/// Before an operand is quantised: notes the amax that was found in it, and says which one to quantise it
/// under. Called again with the same operand it changes nothing; with the operand of another micro-batch it
/// keeps the larger amax.
///
/// Delayed scaling, as Transformer Engine's kernel has it [TE]: scale = largest element / max(history) /
/// 2^margin, the history being that of the steps done; where the maximum is 0 or not finite, the scale of the
/// step before; in the first step 1. Here the scale is said as the amax it belongs to, which is the same to
/// the bit: quotients by powers of two are exact.
struct ChooseAmax {
  const float* found = nullptr;  ///< of this tensor; like all pointers here in the backend's memory
  View<const float> history_L;   ///< that of step s at s % L; 0 where there was none
  AmaxRule rule = AmaxRule::Delayed;
  float start = 0;                         ///< Delayed: before anything is known; Fixed: always
  int margin = 0;                          ///< of Delayed
  std::uint32_t step = 0;                  ///< from 0
  const std::uint32_t* step_at = nullptr;  ///< the same, where only the backend knows it
  float* pending = nullptr;                ///< in, out: the largest found in this step
  float* used = nullptr;                   ///< out; Delayed: in too, that of the step before, or 0
};

/// After a step: its amaxes enter the histories, and the pending ones are 0 again. A step that was halted
/// (StepRecord::halted) leaves the histories as they were.
struct PushAmax {
  View<float> pending_S;
  View<float> history_SL;
  std::uint32_t step = 0;
  const std::uint32_t* step_at = nullptr;
  const std::uint32_t* halted = nullptr;  ///< null: not
};

NIBBLE_OP(ChooseAmax, choose_amax)
NIBBLE_OP(PushAmax, push_amax)

/// The rules, for implementations. `most` is the largest of the history, `newest` that of the step before.
NIBBLE_HD float chosen_amax(AmaxRule rule, float most, float newest, float found, float start, int margin,
                            float before) {
  const auto usable = [](float x) { return x > 0 && is_finite(x); };
  if (rule == AmaxRule::Fixed) return start;
  if (rule == AmaxRule::Previous) return usable(newest) ? newest : found;
  if (!usable(most)) return usable(before) ? before : start;
  for (int i = 0; i < margin; ++i) most = most * 2.0f;
  for (int i = 0; i > margin; --i) most = most * 0.5f;
  return is_finite(most) ? most : kFloatMax;
}

}  // namespace nibble
