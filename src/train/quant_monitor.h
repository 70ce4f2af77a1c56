// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "layers/context.h"
#include "telemetry/alarms.h"
#include "telemetry/events.h"
#include "telemetry/statistics.h"
#include "train/step_sums.h"

namespace nibble {

/// Collects what quantisation did in the steps that are measured and turns it into events and alarms when a
/// step is over. Sums, counts and extremes add up over micro-batches in the backend's memory; ratios are
/// taken last. Several measured steps may be in flight: nothing here waits for one.
class QuantMonitor final : public QuantObserver {
 public:
  QuantMonitor(Device& device, AlarmRules rules, TelemetrySelection selection);

  OperandSums* operand(const LinearInfo& linear, Gemm gemm, Operand operand, const QuantSpec& spec) override;
  DifferenceSums* product(const LinearInfo& linear, Gemm gemm) override;
  WeightSums* weight(const LinearInfo& linear, const QuantSpec& spec) override;
  TensorSums* residual(const std::string& sublayer, std::size_t position) override;
  LogitSums* logits(const std::string& sublayer, std::size_t position) override;
  void issued() override;

  /// An event of before a resume: moves the memory of amax and alarms as it did then, and says nothing.
  void recall(const QuantEvent& event);

  /// Sends the events of the oldest measured step that was issued, `step` (steps done after it), and the
  /// alarms they raise to `sink`. The caller has waited for that step.
  void finish_step(std::int64_t step, Sink& sink);

 private:
  using Place = StepSums::Place;
  /// Position of the linear or sublayer, GEMM, operand: the order of the log.
  using OperandKey = std::tuple<int, int, int>;
  using ProductKey = std::pair<int, int>;
  template <class T>
  struct Named {
    T name;
    Place place;
  };
  struct OperandLabel {
    OperandName where;
    QuantSpec spec;
  };
  struct WeightLabel {
    std::string layer;
    int block = 0;
    bool quantised = false;
  };
  struct LayerPlaces {
    std::string name;
    std::optional<Place> residual, logits;
  };
  /// What one step measures and where.
  struct Measured {
    std::map<OperandKey, Named<OperandLabel>> operands;
    std::map<ProductKey, Named<OperandName>> products;
    std::map<int, Named<WeightLabel>> weights;
    std::map<std::string, LayerPlaces> layers;
    std::vector<std::string> layer_order;
  };

  bool has_layer(const std::string& name) const;
  LayerPlaces& layer(const std::string& sublayer);
  double sqnr(const Measured& m, const ProductKey& key, Operand operand) const;
  void finish_operands(std::int64_t step, const Measured& m, Sink& sink);
  void finish_products(std::int64_t step, const Measured& m, Sink& sink);
  void finish_rest(std::int64_t step, const Measured& m, Sink& sink) const;

  AlarmRules rules_;
  TelemetrySelection selection_;
  bool operands_wanted_, products_wanted_, weights_wanted_, residuals_wanted_, logits_wanted_;
  AlarmMonitor monitor_;
  StepSums sums_;
  Measured now_;                            ///< of the step being issued
  std::deque<Measured> flying_;             ///< of the steps issued, oldest first
  std::map<std::string, AmaxDrift> drift_;  ///< by layer, GEMM and operand
};

/// "nvfp4.te", "mxfp4", ...: format and, where it matters, whose arithmetic.
std::string format_name(const QuantSpec& spec);

}  // namespace nibble
