// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "telemetry/events.h"

namespace nibble {

/// When telemetry is worth a person's attention. Thresholds are data: a protocol freezes them.
struct AlarmRules {
  double drift_octaves = 2.0;  ///< rise of log2 amax above its recent mean; a model that learns moves by one
  std::int64_t drift_after = 5;   ///< measurements of an operand before its drift is judged: a model that
                                  ///< starts moves by octaves, and a mean of two points is no mean
  double rise_octaves = 4.0;      ///< rise of log2 amax above the smallest of its recent measurements
  std::int64_t rise_window = 20;  ///< most measurements that are recent for rise_octaves
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

/// What is recent of an amax: the measurements of the second half of the steps so far, at most `most` of them
/// and always the last one. A model that starts grows by octaves in a hundred steps, and as a power of the
/// step: it is held against where it was lately, not against its initial values.
class RecentAmax {
 public:
  explicit RecentAmax(std::int64_t most) : most_(static_cast<std::size_t>(most < 1 ? 1 : most)) {}
  /// log2 amax of what is recent at this step, oldest first, before this measurement enters. Steps ascend. A
  /// zero or an amax that is not finite has no octave and does not enter.
  std::vector<double> push(std::int64_t step, double amax);

 private:
  std::size_t most_;
  std::deque<std::pair<std::int64_t, double>> seen_;
};

/// Octaves of an operand's amax above its recent mean (RecentAmax of ten); 0 at the first measurement and for
/// a zero tensor.
class AmaxDrift {
 public:
  double push(std::int64_t step, double amax);

 private:
  RecentAmax recent_{10};
};

/// What an alarm is about: a rule and an operand of a GEMM. An amax that rises is one subject whichever rule
/// says so, and it is the tensor's own: x of fprop and x^T of wgrad are one.
std::string alarm_subject(const std::string& rule, const OperandName& where);

/// Alarms of one severity and subject, for a reader: what the first said, how often and until when.
struct AlarmGroup {
  AlarmEvent first;
  std::int64_t last_step = 0;
  int count = 0;
  std::vector<std::string> arms;  ///< that raised it, in order; empty outside a comparison
  /// "step 125" or "steps 125 to 300, 4 times".
  std::string when() const;
};
/// In the order of their first alarms.
std::vector<AlarmGroup> grouped(const std::vector<AlarmEvent>& alarms);

/// Applies the rules to QuantEvents; each alarm names layer, GEMM, operand, value, threshold and remedy. Each
/// rule speaks once for a subject and again only after the subject was well for a whole measured step, so a
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
  /// Of one subject: the last measured step, whether it was bad then and in the measured step before.
  struct Spoken {
    std::int64_t step = -1;
    bool now = false, before = false;
  };
  void judge(const QuantEvent& e, const Finding& finding, std::vector<AlarmEvent>& out);
  AlarmRules rules_;
  std::map<std::string, Spoken> spoken_;
  std::map<std::string, int> measured_;       ///< measurements so far, an operand
  std::map<std::string, RecentAmax> recent_;  ///< an operand
};

}  // namespace nibble
