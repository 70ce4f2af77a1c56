// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace nibble {

/// A comparison that was never trained: for measuring the report and its readers, never a result.
struct LongRun {
  std::int64_t steps = 100'000;
  std::int64_t every = 100;     ///< steps between measurements
  std::int64_t layers = 64;     ///< quantised linears, each with six operands and three GEMMs
  std::int64_t spike_step = 0;  ///< at this measured step one operand has an SQNR of 1 dB; 0: at none
};

/// Writes the folder of such a comparison as `nibble validate` would: protocol, verdict, context, three arms'
/// metrics.jsonl and the candidate's telemetry.jsonl, of smooth invented numbers. The folder must not exist.
void write_long_run(const std::filesystem::path& folder, const LongRun& run);

}  // namespace nibble
