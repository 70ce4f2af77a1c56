// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "telemetry/console_sink.h"
#include "train/run_log.h"
#include "validate/statistics.h"

/// What arms of one comparison have to agree on, read from their logs.
namespace nibble {

/// The evaluations, that of step 0 left out: every arm has it from the same bytes.
std::vector<EvalPoint> points(const std::vector<EvalEvent>& events);

/// For the progress lines of the arms after it.
BaselineLosses losses_of(const RunLog& log);

/// Throws Error{Runtime} unless both runs started from the same bytes and saw the same batches in every step
/// they share. `reference` and `directory` name them in the message.
void require_paired(const RunLog& reference, const std::string& reference_name, const RunLog& log,
                    const std::string& name);

}  // namespace nibble
