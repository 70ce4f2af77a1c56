// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/report.h"

namespace nibble {

/// The charts of report.html, each as inline SVG with the legend it needs. Gaps are shown in per cent.
std::string plot_losses(const ReportData& d);
std::string plot_gap(const ReportData& d);
std::string plot_training_difference(const ReportData& d);
std::string plot_aa(const ReportData& d);
/// Whether the pairs' own spread is the noise, and not an A/A arm.
bool spread_is_noise(const ReportData& d);
/// Mean gap of every pair in every decision window, with mean and sample sd.
std::string pair_table(const ReportData& d);
/// Interval of each decision window beside its limit.
std::string plot_windows(const Verdict& v);

/// The arm of pair 1 by name, or null.
const ArmSeries* find_arm(const ReportData& d, const std::string& name);

/// Heat maps layer x step a GEMM: output error, and of each operand SQNR, flushed share, ends of the block
/// scales and amax drift.
std::string heat_maps(const RunTelemetry& t);
/// The same of weights (update, zeros of the gradient, oscillation), of the residual stream and of
/// attention's logits; empty where none was measured.
std::string weight_maps(const RunTelemetry& t);
/// The layers whose telemetry of the second half of the run speaks against four bits, worst first, each with
/// its largest reason: an output error 1.3 times the median layer's, a quarter of an operand flushed, an SQNR
/// below 13 dB, a hundredth of the block scales vanished.
std::string bf16_candidates(const RunTelemetry& t);
/// The ten operands with the lowest SQNR at the last measured step.
std::string worst_table(const std::vector<QuantEvent>& events);
/// Ends of the block scales' range and their histogram, first and last measurement, a GEMM operand a row.
std::string scale_table(const std::vector<QuantEvent>& events);

}  // namespace nibble
