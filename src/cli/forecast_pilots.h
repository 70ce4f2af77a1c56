// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "validate/forecast.h"

namespace nibble {

struct PilotOptions {
  std::string config;                  ///< TOML of the comparison that every pilot is
  std::vector<std::string> overrides;  ///< of all pilots
  std::vector<std::string> sizes;      ///< overrides of one size each, separated by commas; empty: the file's
  std::vector<std::int64_t> steps;     ///< lengths; empty: the file's
  MachineOptions machine;
  bool resume = false;  ///< keep finished pilots of the same protocol, continue an interrupted one
};

/// N of the law: the matrices of the blocks. Norms and biases are a thousandth of them.
double block_parameters(const DecoderSpec& spec);

/// Runs a comparison for every size and length under RUNS/NAME-pilot-SIZE-STEPS, writes RUNS/NAME-pilots.csv,
/// and says on the way what came out. After a signal `signal` is its number and the list ends there. A pilot
/// that its rule or a broken value ended early is left out, and said. Throws as run_comparison does.
std::vector<GapRun> run_pilots(const PilotOptions& options, int& signal);

}  // namespace nibble
