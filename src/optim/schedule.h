// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

enum class ScheduleKind : std::uint8_t {
  Wsd,       ///< warm-up, stable, linear decay to final_ratio over the last decay_fraction of the run
  Cosine,    ///< half a cosine from the end of warm-up to final_ratio at the end
  Linear,    ///< a straight line from the end of warm-up to final_ratio at the end
  Constant,  ///< after warm-up the peak
};

/// "wsd", "cosine", "linear", "constant"; throws Error{Usage} otherwise.
ScheduleKind schedule_from_name(std::string_view name);
std::string_view name_of(ScheduleKind kind);

/// The learning rate as a pure function of the step, so that resuming needs no state.
struct Schedule {
  ScheduleKind kind = ScheduleKind::Wsd;
  double peak = 0;
  std::int64_t steps = 0;         ///< of the whole run
  std::int64_t warmup_steps = 0;  ///< the first W steps run at peak (step + 1) / W
  double decay_fraction = 0.2;    ///< WSD: share of the run that decays
  double final_ratio = 0.01;      ///< of the peak, reached at the last step

  double at(std::int64_t step) const;
  /// The first step of the decay: the end of WSD's stable phase; the end of warm-up for cosine and linear;
  /// `steps` for a constant rate.
  std::int64_t decay_start() const;
};

}  // namespace nibble
