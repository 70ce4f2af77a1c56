// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

/// What a run's telemetry.jsonl says, in at most a chosen number of columns of steps.
struct RunTelemetry {
  std::vector<QuantEvent> quant;
  std::vector<GemmEvent> gemms;
  std::vector<WeightEvent> weights;
  std::vector<LayerEvent> layers;
};

/// Columns that the page's maps have room for.
inline constexpr std::size_t kTelemetryColumns = 120;

/// Reads a log of any length in one column of memory a step it keeps. A run measured at more than `columns`
/// steps is thinned: the first and the last measured step stay alone, those between share columns of
/// neighbouring steps, and of each number the worst of a column is kept (the lowest SQNR, the largest flushed
/// share, error and amax, the drift furthest from 0), so that no spike is lost; histograms add up. A column's
/// step is its last one's. A step that was logged twice (a resumed run) counts as often; a last line without
/// its line feed is left out. Throws Error{Runtime} naming the file, the line and the remedy.
RunTelemetry read_telemetry(const std::filesystem::path& telemetry_jsonl,
                            std::size_t columns = kTelemetryColumns);

}  // namespace nibble
