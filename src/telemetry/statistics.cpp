// SPDX-License-Identifier: Apache-2.0
#include "telemetry/statistics.h"

#include <algorithm>

namespace nibble {
namespace {

bool has(const std::vector<std::string>& list, std::string_view name) {
  return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
}

constexpr Statistic kStatistics[] = {
    {"cur_amax", &QuantEvent::amax, "largest magnitude", true},
    {"amax_drift", &QuantEvent::amax_drift, "octaves of cur_amax above its recent mean", true},
    {"flushed", &QuantEvent::flushed, "share of the non-zero values that decode to zero", true},
    {"underflows%", &QuantEvent::underflows, "the same in per cent of all values"},
    {"saturated", &QuantEvent::saturated, "share at the largest code (+-6)"},
    {"zero_blocks", &QuantEvent::zero_blocks, "share of blocks that are zero"},
    {"scale_max", &QuantEvent::scale_max, "share of block scales at the largest code", true},
    {"scale_subnormal", &QuantEvent::scale_subnormal, "share of block scales that are subnormal"},
    {"scale_zero", &QuantEvent::scale_zero, "share of blocks that are not zero but whose scale is", true},
    {"scale_inv_min", &QuantEvent::scale_inv_min, "smallest tensor scale over the micro-batches"},
    {"scale_inv_max", &QuantEvent::scale_inv_max, "largest tensor scale over the micro-batches"},
    {"sqnr_db", &QuantEvent::sqnr_db, "signal to quantisation noise, dB", true},
    {"mse", &QuantEvent::mse, "mean squared error"},
    {"bias", &QuantEvent::bias, "mean growth over mean magnitude"},
    {"cosine", &QuantEvent::cosine, "of the decoded values and the values"},
    {"crest", &QuantEvent::crest, "amax / rms of what is quantised"},
    {"crest_unrotated", &QuantEvent::crest_unrotated, "amax / rms before the Hadamard transform"},
    {"std", &QuantEvent::deviation, "standard deviation"},
    {"l1_norm", &QuantEvent::l1_norm, "sum of magnitudes"},
    {"l2_norm", &QuantEvent::l2_norm, "root of the sum of squares"},
    {"dynamic_range", &QuantEvent::dynamic_range, "octaves from the smallest to the largest magnitude"},
    {"max_blockwise_dynamic_range", &QuantEvent::block_dynamic_range, "the widest of a block"},
    {"code_entropy", &QuantEvent::code_entropy, "bits a code of four bits"},
};

}  // namespace

std::span<const Statistic> operand_statistics() { return kStatistics; }

std::vector<std::string> statistic_names() {
  std::vector<std::string> names;
  for (const Statistic& s : kStatistics) names.emplace_back(s.name);
  names.insert(names.end(), {kScaleHistogram, kCodeHistogram, kOutputError});
  names.insert(names.end(), std::begin(kWeightStatistics), std::end(kWeightStatistics));
  names.insert(names.end(), std::begin(kResidualStatistics), std::end(kResidualStatistics));
  names.emplace_back(kLogitMax);
  return names;
}

bool TelemetrySelection::has_gemm(std::string_view gemm) const { return has(gemms, gemm); }
std::string_view tensor_of(std::string_view operand) { return operand.substr(0, operand.find('^')); }

bool TelemetrySelection::has_tensor(std::string_view operand) const {
  const std::string_view tensor = tensor_of(operand);
  const std::string_view other = tensor == "x" ? "activation" : tensor == "w" ? "weight" : "gradient";
  return has(tensors, tensor) || has(tensors, other);
}
bool TelemetrySelection::has_statistic(std::string_view statistic) const {
  return has(statistics, statistic);
}

}  // namespace nibble
