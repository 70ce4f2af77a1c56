// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "layers/context.h"
#include "telemetry/alarms.h"
#include "telemetry/events.h"

namespace nibble {

/// Collects what quantisation did in the steps that are measured, adds it up over micro-batches, and turns it
/// into events and alarms when the step is over.
class QuantMonitor final : public QuantObserver {
 public:
  /// `layers` are globs over linear names; empty: all.
  QuantMonitor(AlarmRules rules, std::vector<std::string> layers);

  bool wants(const LinearInfo& linear, Gemm gemm) override;
  void on_operand(const LinearInfo& linear, Gemm gemm, Operand operand, const QuantSpec& spec,
                  const QuantStats& stats) override;
  void on_product(const LinearInfo& linear, Gemm gemm, double relative_error) override;

  /// An event of before a resume: moves the memory of amax and alarms as it did then, and says nothing.
  void recall(const QuantEvent& event);

  /// Sends the events of step `step` (steps done after it) and the alarms they raise to `sink`, and forgets
  /// them.
  void finish_step(std::int64_t step, Sink& sink);

 private:
  struct OperandSum {
    std::string name;
    int block = 0;
    QuantSpec spec;
    QuantStats stats;
  };
  struct ProductSum {
    std::string name;
    int block = 0;
    double error_squared = 0;
    int count = 0;
  };
  using Key = std::tuple<int, int, int>;  ///< position of the linear, GEMM, operand: the order of the log

  double sqnr(int position, Gemm gemm, Operand operand) const;

  AlarmRules rules_;
  std::vector<std::string> layers_;
  AlarmMonitor monitor_;
  std::map<Key, OperandSum> operands_;
  std::map<std::pair<int, int>, ProductSum> products_;
  std::map<std::string, AmaxDrift> drift_;  ///< by layer, GEMM and operand
};

/// "nvfp4.te", "mxfp4", ...: format and, where it matters, whose arithmetic.
std::string format_name(const QuantSpec& spec);

}  // namespace nibble
