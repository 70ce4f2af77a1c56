// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace nibble {

std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::Wsd:
      return "wsd";
    case ScheduleKind::Cosine:
      return "cosine";
    case ScheduleKind::Linear:
      return "linear";
    case ScheduleKind::Constant:
      return "constant";
  }
  return "?";
}

ScheduleKind schedule_from_name(std::string_view name) {
  for (ScheduleKind k :
       {ScheduleKind::Wsd, ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Constant})
    if (name_of(k) == name) return k;
  fail_usage("schedule \"{}\" is not one of wsd, cosine, linear, constant", name);
}

std::int64_t Schedule::decay_start() const {
  if (kind == ScheduleKind::Constant) return steps;
  if (kind != ScheduleKind::Wsd) return std::min(warmup_steps, steps);
  const std::int64_t decay = std::llround(decay_fraction * static_cast<double>(steps));
  return std::max(std::min(warmup_steps, steps), steps - decay);
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const std::int64_t start = decay_start();
  if (step < start || kind == ScheduleKind::Constant) return peak;
  // The last step, steps - 1, gets final_ratio.
  const double span = static_cast<double>(std::max<std::int64_t>(1, steps - start));
  const double done = std::min(1.0, static_cast<double>(step - start + 1) / span);
  const double left = kind == ScheduleKind::Cosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return peak * (final_ratio + (1 - final_ratio) * left);
}

}  // namespace nibble
