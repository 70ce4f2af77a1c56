// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

/// One number of a QuantEvent: its name in telemetry.jsonl and in [telemetry] statistics. Where Transformer
/// Engine's debug tools have the statistic, the name is theirs (cur_amax, underflows%, mse, std, ...).
struct Statistic {
  const char* name;
  double QuantEvent::*value;
  const char* meaning;
  bool always = false;  ///< logged whatever is selected: alarms remember it over a resume
};
std::span<const Statistic> operand_statistics();

/// The lists of a QuantEvent.
inline constexpr const char* kScaleHistogram = "scale_log2";
inline constexpr const char* kCodeHistogram = "codes";
/// What is measured apart from operands: of GEMMs, of weights, of sublayers.
inline constexpr const char* kOutputError = "output_error";
inline constexpr const char* kWeightStatistics[] = {"update_ratio", "gradient_zeros", "gradient_rms",
                                                    "oscillation", "changed"};
inline constexpr const char* kResidualStatistics[] = {"residual_rms", "residual_amax"};
inline constexpr const char* kLogitMax = "attention_logit_max";

/// Every name that [telemetry] statistics takes.
std::vector<std::string> statistic_names();

/// "dy^T" -> "dy".
std::string_view tensor_of(std::string_view operand);

/// Which numbers a run measures and logs; an empty list means all of its kind.
struct TelemetrySelection {
  std::vector<std::string> layers;  ///< globs over names of linears
  std::vector<std::string> gemms;   ///< fprop, dgrad, wgrad
  std::vector<std::string>
      tensors;  ///< x, w, dy, or as Transformer Engine says: activation, weight, gradient
  std::vector<std::string> statistics;  ///< statistic_names()

  bool has_gemm(std::string_view gemm) const;
  bool has_tensor(std::string_view operand) const;
  bool has_statistic(std::string_view statistic) const;
};

}  // namespace nibble
