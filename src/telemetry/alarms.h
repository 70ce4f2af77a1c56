// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

/// When telemetry is worth a person's attention. Thresholds are data: a protocol freezes them.
struct AlarmRules {
  double drift_octaves = 2.0;    ///< rise of log2 amax above its EMA; a model that learns moves by one
  std::int64_t drift_after = 5;  ///< measurements of an operand before its drift is judged: a model that
                                 ///< starts moves by octaves, and a mean of two points is no mean
  double rise_octaves = 4.0;  ///< rise of log2 amax above the smallest of the last rise_window measurements
  std::int64_t rise_window = 20;
  double output_error = 0.5;  ///< relative error of a GEMM's output against BF16; four bits give 0.1 to 0.25
  double flushed = 0.40;      ///< share of non-zero inputs that decode to zero
  double sqnr_db = 10.0;      ///< a Gaussian has 20 (nearest) or 17 (stochastic)
  double scale_max =
      0.10;  ///< share of block scales at the largest code; the tensor's largest block always is
  double scale_zero = 0.01;   ///< share of blocks that are not zero but whose scale is
  double gemm_warning = 2.0;  ///< times the error that the operands' SQNR explains
  double gemm_warning_floor = 0.35;
  double gemm_fault = 4.0;
  double gemm_fault_floor = 0.70;
  double gain_fault = 0.15;  ///< distance of an operand's gain from 1; sound quantisers stay within 0.01
  double bias_fault = 0.05;  ///< shrink or growth under stochastic rounding, share of the mean magnitude...
  double bias_sigmas = 5;    ///< ...beyond so many standard errors; sound: 0.01 by clipped block maxima
  double full_codes = 0.25;  ///< fewest values at the largest code, a block; sound: above one
  std::int64_t gradient_steps = 5;  ///< first steps over which two arms' gradient norms are compared
  double gradient_fault = 0.2;      ///< distance of the median ratio of those norms from 1; sound: 0.02
  bool operator==(const AlarmRules&) const = default;
};

/// A quantised GEMM's output beside the same GEMM of the unquantised BF16 operands, on a few sampled rows.
struct GemmCheck {
  std::int64_t step = 0;
  OperandName where;          ///< operand is empty: the whole GEMM is meant
  double relative_error = 0;  ///< ||Y_quantised - Y_bf16|| / ||Y_bf16||, Frobenius, FP64
  double sqnr_a_db = 0;       ///< measured on the operands as they entered the GEMM; +inf when not quantised
  double sqnr_b_db = 0;
};

/// Relative error of a product whose operands carry independent errors: sqrt(1/s1 + 1/s2), s the SQNR as a
/// ratio. It holds when the true product is as large as that of independent operands; real gradients add up
/// coherently, which only makes the relative error smaller.
double explained_gemm_error(double sqnr_a_db, double sqnr_b_db);

/// Nothing while the error is explained and below the rules' output_error. A Fault says the GEMM computes
/// something else than the recipe: the two operands were rotated with different signs, transposed, or scaled
/// apart. Such an error is about sqrt(2), far above anything rounding to four bits can do (about 0.17), so
/// the two cannot be confused.
std::optional<AlarmEvent> check_gemm(const GemmCheck& c, const AlarmRules& rules);

/// What a sound quantiser leaves of an operand, whatever the operand holds.
struct OperandCheck {
  std::int64_t step = 0;
  OperandName where;
  /// <q, x> / <x, x>. Large values decide it, and those keep three bits: 1 within 0.01 for Gaussian,
  /// heavy-tailed and sparse data. A scale that is one binade off gives 2 or 1/2; one that is too small
  /// clips: 0.5 to 0.75.
  double gain = 1;
  /// mean((q - x) sign x) / mean |x| and its standard error, sqrt(sum e^2) / sum |x|. Stochastic rounding has
  /// none but what clipping takes (0.003 to 0.007); with its random bits stuck at zero it truncates: -0.18 to
  /// -0.24. Absent for other roundings, and where a tenth of the blocks have scales too small to be exact.
  std::optional<double> bias;
  double bias_error = 0;
  /// Values at the largest code, a block whose scale is a normal number. The block's largest value must be
  /// one of them under NVFP4's plain scale rule: 1.2 to 1.9; 0.5 when stochastic rounding truncates; none
  /// when the scales are twice too large, which costs one bit and shows nowhere else. Absent for other rules.
  std::optional<double> full_codes;
};

/// A Fault when the operand was not quantised as its format says; nothing otherwise. A NaN is a fault.
std::optional<AlarmEvent> check_operand(const OperandCheck& c, const AlarmRules& rules);

/// A Fault when a candidate's gradient norms in the first steps are not those of the baseline, on nearly the
/// same weights and the same batches: a lost micro-batch, a wrong loss scale or a wrong sum over ranks,
/// whatever the precision. Norms of step 1, 2, ...; nothing while either arm has fewer than gradient_steps.
std::optional<AlarmEvent> check_gradient_norms(const std::vector<double>& baseline,
                                               const std::vector<double>& candidate, const AlarmRules& rules);

/// Applies the rules to QuantEvents; each alarm names layer, GEMM, operand, value, threshold and remedy. Each
/// rule speaks once for an operand and again only after the operand was well for a whole measurement, so a
/// lasting condition is one alarm and not one a step.
class AlarmMonitor {
 public:
  explicit AlarmMonitor(AlarmRules rules) : rules_(rules) {}
  std::vector<AlarmEvent> inspect(const QuantEvent& e);

 private:
  /// What a rule found. `text` says value and threshold in words.
  struct Finding {
    const char* rule;
    double value, threshold;
    std::string text, remedy;
    bool bad;
  };
  void judge(const QuantEvent& e, const Finding& finding, std::vector<AlarmEvent>& out);
  double rise(const QuantEvent& e);
  AlarmRules rules_;
  std::map<std::string, bool> raised_;
  std::map<std::string, int> measured_;               ///< measurements so far, an operand
  std::map<std::string, std::deque<double>> window_;  ///< log2 amax of the last rise_window, an operand
};

/// EMA of log2 amax for one operand: push returns log2(amax / EMA) and then moves the EMA.
/// 0 at the first measurement and for a zero tensor, which has no octave.
class AmaxDrift {
 public:
  explicit AmaxDrift(double keep = 0.9) : keep_(keep) {}
  double push(double amax);

 private:
  double keep_;
  std::optional<double> ema_log2_;
};

}  // namespace nibble
