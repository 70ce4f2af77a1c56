// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

/// What metrics.jsonl holds, as the events that were written. A step that was logged twice (a resumed run)
/// counts as it was logged last; a last line without its line feed was cut by a crash and is left out.
struct RunLog {
  HeaderEvent header;
  std::vector<TrainEvent> train;
  std::vector<EvalEvent> evaluations;
  std::vector<TaskEvent> tasks;  ///< by step and task
  std::vector<AlarmEvent> alarms;
  std::vector<SwitchEvent> switches;
};

/// Throws Error{Runtime} naming the file, the line and the remedy.
RunLog read_run_log(const std::filesystem::path& metrics_jsonl);
std::vector<QuantEvent> read_telemetry_log(const std::filesystem::path& telemetry_jsonl);

}  // namespace nibble
