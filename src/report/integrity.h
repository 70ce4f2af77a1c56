// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/report.h"

namespace nibble {

/// What was changed after the run, as sentences; empty when nothing was. The protocol that is in the folder
/// is held against the hash in the header of every arm's log and in the verdict, and run.toml against the
/// protocol. It finds accidents and second thoughts, not forgery: whoever edits the logs too is not found.
std::vector<std::string> changes_after_run(const std::filesystem::path& run, const ReportData& data);

/// One line that opens a report about such a run; empty when nothing was changed.
std::string change_banner(const ReportData& data);

}  // namespace nibble
