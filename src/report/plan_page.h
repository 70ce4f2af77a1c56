// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace nibble {

/// The page of one plan, or of several recipes side by side: where each second and each byte goes, time to
/// equal loss, sources of every figure. One file, no script, nothing from the network. Pure: the same plans
/// give the same bytes.
std::string plan_page(const std::vector<Plan>& plans, const std::vector<SweepPoint>& sweep = {});

/// Writes it, atomically.
void write_plan_page(const std::vector<Plan>& plans, const std::filesystem::path& html,
                     const std::vector<SweepPoint>& sweep = {});

}  // namespace nibble
