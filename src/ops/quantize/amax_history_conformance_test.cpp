// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ops/conformance.h"
#include "ops/quantize/amax_history.h"

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;

TEST(Conformance, choose_amax) {
  for (AmaxRule rule : {AmaxRule::Delayed, AmaxRule::Previous, AmaxRule::Fixed})
    for (std::int64_t length : {std::int64_t{1}, std::int64_t{7}, std::int64_t{1024}})
      for (std::uint32_t step : {0u, 5u, 3000u})
        conformance::compare<ChooseAmax>(
            choose_amax, fmt::format("rule {} length {} step {}", static_cast<int>(rule), length, step),
            [&](Case& c) {
              const View<const float> history = c.input_f32(1, 5, length);
              return ChooseAmax{
                  .found = c.input_f32(1, 5, std::int64_t{1}).data(),
                  .history_L = history,
                  .rule = rule,
                  .start = 448,
                  .margin = 2,
                  .step = step,
                  .pending = c.output_f32("pending", Bound::same_bytes(), std::int64_t{1}).data(),
                  .used = c.output_f32("used", Bound::same_bytes(), std::int64_t{1}).data()};
            });
}

TEST(Conformance, push_amax) {
  for (auto [slots, length, step] : {std::array<std::int64_t, 3>{1, 1, 9}, {300, 7, 3}, {12, 1024, 2047}})
    conformance::compare<PushAmax>(
        push_amax, fmt::format("{} slots of {} at step {}", slots, length, step),
        [&, slots = slots, length = length, step = step](Case& c) {
          return PushAmax{.pending_S = c.output_f32("pending", Bound::same_bytes(), slots),
                          .history_SL = c.output_f32("history", Bound::same_bytes(), slots, length),
                          .step = static_cast<std::uint32_t>(step)};
        },
        {.strided = false});
}

}  // namespace
}  // namespace nibble
