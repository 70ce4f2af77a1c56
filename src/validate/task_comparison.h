// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "validate/protocol.h"
#include "validate/verdict.h"

namespace nibble {

/// Compares baseline and candidate on the protocol's tasks, a row a task and metric. What an example gives to
/// a metric is averaged over the protocol's evaluation points and over the pairs of arms; then the paired
/// bootstrap over examples (eval/metric.h), keyed by the task's name. `run` is the comparison's folder. Empty
/// when the protocol has no tasks. Throws Error{Runtime} naming the arm whose results are missing.
std::vector<TaskComparison> compare_tasks(const Protocol& protocol, const std::filesystem::path& run);

}  // namespace nibble
