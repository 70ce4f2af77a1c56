// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "telemetry/console_sink.h"
#include "train/setup.h"
#include "train/signals.h"
#include "validate/noise_floor.h"
#include "validate/protocol.h"
#include "validate/verdict.h"

namespace nibble {

/// Runs a comparison: freezes the protocol, trains every arm from the same initial bytes on the same batches,
/// stops the candidate when the abort rule fires, and judges.
///
///   DIR/protocol.json                 frozen before step 0; its hash is in every arm's log
///   DIR/run.toml                      the resolved configuration
///   DIR/{baseline,candidate,candidate_aa}/   run.toml, metrics.jsonl, telemetry.jsonl, checkpoints/, eval/
///   DIR/verdict.json
///   DIR/noise_floor.json              what its A/A arm measured, for later runs (noise_floor.h)
struct Comparison {
  std::filesystem::path directory;
  Protocol protocol;
  Verdict verdict;
  bool finished = false;  ///< false: a signal ended it; `signal` says which, and --resume continues
  int signal = 0;
};

/// The protocol that a configuration means, contract included. With the noise floor of an earlier run its
/// noise rule uses that; throws Error{Usage} when the floor is of another experiment.
Protocol protocol_of(const RunSetup& setup, const std::optional<NoiseFloor>& noise_floor = {});

/// In what a noise floor is of another experiment than the configuration's.
std::vector<FloorDifference> floor_differences(const RunSetup& setup, const NoiseFloor& floor);

/// `make_console` gives the progress sink of an arm (null: silent).
/// Throws  Error{Usage} when the directory holds another protocol's run and `resume` is asked for;
///         Error{Runtime} when the arms did not start from the same bytes or did not see the same batches;
///         Error{NonFinite} from a baseline. A candidate that is not finite is a FAIL, not an error.
Comparison run_comparison(const RunSetup& setup, Stream& stream, bool resume, const SignalGuard& signals,
                          const std::function<std::shared_ptr<ConsoleSink>(const ArmSpec&)>& make_console,
                          const std::optional<NoiseFloor>& noise_floor = {});

}  // namespace nibble
