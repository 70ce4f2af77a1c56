// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// What a run says about itself, as plain structs that any sink can take.
///
/// Goals: a step never waits for a sink's format; a new sink touches no trainer code; every number keeps
/// the precision it was measured with. Non-goals: aggregation over ranks (done before an event is made).
namespace nibble {

/// First line of every log.
struct HeaderEvent {
  std::string run;            ///< name of the run
  std::string arm;            ///< "baseline", "candidate", "candidate_aa"; empty outside a paired run
  std::string recipe;         ///< precision.recipe
  std::string backend;        ///< ref, cpu, cuda
  std::string version;        ///< of the binary
  std::string protocol;       ///< hash of the frozen protocol; empty outside a paired run
  std::string config;         ///< hash of the resolved configuration
  std::string data;           ///< fingerprint of the data
  std::string init;           ///< hash of the initial parameters
  std::uint64_t seed = 0;     ///< training.seed
  std::uint64_t sr_seed = 0;  ///< precision.sr_seed
  std::int64_t steps = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t parameters = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_start = 0;     ///< first step of the learning rate's decay; == steps without one
  bool emulated = false;            ///< some quantised product is not of the stored codes on tensor cores
  std::string products;             ///< how the quantised GEMMs of step 0 are multiplied, and why so
  std::string accumulate = "fp32";  ///< sums of FP4 products: fp32, or truncating
};

struct TrainEvent {
  std::int64_t step = 0;    ///< steps done after this one: 1 is the first
  std::int64_t tokens = 0;  ///< trained so far
  double loss = 0;          ///< mean over the step's tokens, nats a token
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  double tokens_per_s = 0;
  double step_ms = 0;
  std::optional<double> mfu;  ///< share of the stated BF16 peak; absent while a format is emulated
  std::uint64_t batch_hash = 0;
};

/// Validation on fixed sequences with the `bf16` forward, whatever the arm trains in.
struct EvalEvent {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;  ///< nats a token
  std::int64_t eval_tokens = 0;
  std::string set = "validation";
};

/// A task of likelihood evaluation, in the same forward pass.
struct TaskEvent {
  struct Value {
    std::string name;  ///< acc, perplexity, bits_per_byte, ...
    double value = 0;
    double standard_error = 0;
    bool operator==(const Value&) const = default;
  };
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::string task;
  std::int64_t examples = 0;
  std::vector<Value> metrics;  ///< the first one is the task's own
  bool operator==(const TaskEvent&) const = default;
};

/// Where a quantised operand lives.
struct OperandName {
  std::string layer;    ///< full name: "blocks.3.mlp.up"
  int block = -1;       ///< index of the block, -1 outside
  std::string gemm;     ///< fprop, dgrad, wgrad
  std::string operand;  ///< x, w, dy
  bool operator==(const OperandName&) const = default;
};

/// Statistics of one quantised operand at one step, over all its micro-batches. operand_statistics() names
/// them; NaN: a log that does not have it.
struct QuantEvent {
  std::int64_t step = 0;
  OperandName where;
  std::string format;          ///< nvfp4.te, mxfp4, fp8, ...
  double amax = 0;             ///< largest |x| of the tensor
  double amax_drift = 0;       ///< octaves of amax above its recent mean, see AmaxDrift
  double flushed = 0;          ///< share of the non-zero inputs whose DECODED value is zero
  double saturated = 0;        ///< share of the elements whose |code| is the largest (6 in E2M1)
  double zero_blocks = 0;      ///< share of blocks that are zero in the input
  double scale_max = 0;        ///< share of block scales at the largest code (448 in E4M3)
  double scale_subnormal = 0;  ///< share of block scales that are subnormal and not zero
  double scale_zero = 0;       ///< share of blocks that are not zero but whose scale is
  std::array<std::int64_t, 16> scale_log2{};  ///< blocks by floor(log2 scale), see scale_bin
  double sqnr_db = 0;                         ///< 10 log10(sum x^2 / sum (q - x)^2)
  double mse = 0;                             ///< mean (q - x)^2
  double bias = 0;                  ///< mean(q - x) / mean |x|: near 0 when stochastic rounding does its work
  double cosine = 0;                ///< of q and x
  double underflows = 0;            ///< per cent: 100 (non-zeros of x - non-zeros of q) / elements
  double crest = 0;                 ///< amax / rms of what is quantised
  double crest_unrotated = 0;       ///< the same before the Hadamard transform; crest where there is none
  double deviation = 0;             ///< standard deviation of x
  double l1_norm = 0, l2_norm = 0;  ///< of x
  double dynamic_range = 0;         ///< log2(amax / smallest non-zero |x|)
  double block_dynamic_range = 0;   ///< the largest of a block
  double scale_inv_min = 0, scale_inv_max = 0;  ///< decode scales of the tensors, one a micro-batch
  double code_entropy = 0;                      ///< bits a code, at most 4; formats of four bits alone
  std::array<std::int64_t, 16> codes{};         ///< elements by their code; likewise
};

/// Output of a quantised GEMM beside the BF16 product of the unquantised operands, on a few sampled rows.
struct GemmEvent {
  std::int64_t step = 0;
  OperandName where;        ///< operand is empty: the whole GEMM is meant
  double output_error = 0;  ///< ||Y_quantised - Y_bf16|| / ||Y_bf16||, Frobenius
  double explained = 0;     ///< see explained_gemm_error
};

/// One weight over one step; `update` and `oscillation` on sampled rows.
struct WeightEvent {
  std::int64_t step = 0;
  std::string layer;
  int block = -1;
  double update_ratio = 0;    ///< ||w after - w before|| / ||w before||, master weights
  double gradient_zeros = 0;  ///< share of the main gradient that is exactly zero
  double gradient_rms = 0;    ///< before clipping
  /// sum |q after - q before| / sum |w after - w before|, q the decoded quantised weight: 1 while weights lie
  /// anywhere between the codes, more where they gather at the rounding thresholds and flip. NaN: not
  /// quantised.
  double oscillation = 0;
  double changed = 0;  ///< share of the decoded weights that changed in the step; NaN: not quantised
};

/// The residual stream behind a sublayer, and its attention's logits.
struct LayerEvent {
  std::int64_t step = 0;
  std::string layer;                           ///< "blocks.3.attention"
  double residual_rms = 0, residual_amax = 0;  ///< NaN: not measured
  double attention_logit_max = 0;  ///< over sampled queries, all heads; NaN: no attention, or not measured
};

/// The histogram of block scales covers E4M3: bin b holds log2 scale in [b - 7, b - 6). Bin 0 also takes
/// everything smaller (subnormals; zero is counted in scale_zero alone), bin 15 everything larger.
int scale_bin(double scale);

enum class Severity { Info, Warning, Fault };
const char* name(Severity s);
Severity severity_from(const std::string& name);

struct AlarmEvent {
  std::int64_t step = 0;
  Severity severity = Severity::Warning;
  std::string rule;  ///< amax_drift, flushed, sqnr, gemm_mismatch, non_finite, ...
  OperandName where;
  std::string text;  ///< a sentence for a person
  std::string arm;   ///< folder of the arm that raised it; empty outside a comparison and in an arm's own log
  std::optional<double> value, threshold;  ///< what was found, and the rule's limit, where there is one
  std::string remedy;
  bool operator==(const AlarmEvent&) const = default;
};

struct CheckpointEvent {
  std::int64_t step = 0;
  std::string path;
  double seconds = 0;
};

/// Precision changes in the middle of the run.
struct SwitchEvent {
  std::int64_t step = 0;  ///< steps done before the first one in the new precision
  std::string from;
  std::string to;
  std::string what;  ///< forward, backward, all, or the GEMMs by name: "wgrad"
};

/// Takes events. An event a sink does not care for costs nothing. Not thread-safe: the trainer's thread
/// calls.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void on(const HeaderEvent&) {}
  virtual void on(const TrainEvent&) {}
  virtual void on(const EvalEvent&) {}
  virtual void on(const TaskEvent&) {}
  virtual void on(const QuantEvent&) {}
  virtual void on(const GemmEvent&) {}
  virtual void on(const WeightEvent&) {}
  virtual void on(const LayerEvent&) {}
  virtual void on(const AlarmEvent&) {}
  virtual void on(const CheckpointEvent&) {}
  virtual void on(const SwitchEvent&) {}
  /// Makes everything said so far durable; called before a checkpoint is declared complete.
  virtual void sync() {}
};

/// Hands every event to each of its sinks, in the order they were added.
class Sinks final : public Sink {
 public:
  void add(std::shared_ptr<Sink> sink) { sinks_.push_back(std::move(sink)); }
  void on(const HeaderEvent& e) override { each(e); }
  void on(const TrainEvent& e) override { each(e); }
  void on(const EvalEvent& e) override { each(e); }
  void on(const TaskEvent& e) override { each(e); }
  void on(const QuantEvent& e) override { each(e); }
  void on(const GemmEvent& e) override { each(e); }
  void on(const WeightEvent& e) override { each(e); }
  void on(const LayerEvent& e) override { each(e); }
  void on(const AlarmEvent& e) override { each(e); }
  void on(const CheckpointEvent& e) override { each(e); }
  void on(const SwitchEvent& e) override { each(e); }
  void sync() override {
    for (auto& s : sinks_) s->sync();
  }

 private:
  template <class Event>
  void each(const Event& e) {
    for (auto& s : sinks_) s->on(e);
  }
  std::vector<std::shared_ptr<Sink>> sinks_;
};

}  // namespace nibble
