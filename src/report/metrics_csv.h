// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/run_log.h"

namespace nibble {

/// The arms below a run's folder that have a log, by name: the folder itself ("" when it is one run), else
/// baseline, candidate, candidate_aa, then the others (pair_02/baseline, full, no_rht, ...) in their order.
std::vector<std::pair<std::string, std::filesystem::path>> arms_below(const std::filesystem::path& run);

/// The logs as one table: arm,step,tokens,loss,lr,grad_norm,tokens_per_s,step_ms,val_loss. A row a step; a
/// step with an evaluation has val_loss, step 0 has nothing else. All digits of the log.
std::string metrics_csv(const std::vector<std::pair<std::string, RunLog>>& arms);

/// arms_below read and written as a table. Throws Error{Usage} for a folder without a log.
void write_metrics_csv(const std::filesystem::path& run, const std::filesystem::path& file);

}  // namespace nibble
