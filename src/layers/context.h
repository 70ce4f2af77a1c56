// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "backend/device.h"
#include "ops/health/quant_stats.h"
#include "ops/step_record.h"
#include "quant/native_gemm.h"
#include "recipe/resolve.h"

namespace nibble {

class AmaxState;

/// One parameter as a layer sees it. The memory belongs to the model's flat buffers.
struct Param {
  View<float> master;  ///< FP32; norms, convolution, scan and biases read it directly
  ConstRealView
      compute;       ///< what a GEMM or a lookup reads: the BF16 copy, or the master under an FP32 recipe
  View<float> grad;  ///< FP32 main gradient, added into
  /// Largest magnitude of `compute`, as WithAmax has it; kept by whoever writes `compute`. Null: nobody keeps
  /// it, as where that is not the BF16 copy.
  const float* amax = nullptr;

  bool present() const { return !master.empty(); }
};

/// Sums about one operand of one GEMM.
struct OperandSums {
  QuantStats quantised;
  TensorSums unrotated;  ///< before the Hadamard transform; empty where the operand is not rotated
};

/// Sums about one weight over one step.
struct WeightSums {
  TensorSums gradient;     ///< the main gradient, before clipping
  DifferenceSums update;   ///< some rows of the master weight, after the step against before
  DifferenceSums decoded;  ///< the same rows as fprop's quantiser decodes them; empty where it has none
};

/// Says where the numbers of an observed step go; the trainer implements it. Each function returns memory of
/// the backend, zeros at the step's first call and then added into, or null for what is not wanted. Nobody
/// waits for the sums inside the step, and observing changes no bit of it: it costs about one more
/// quantisation of each operand.
class QuantObserver {
 public:
  virtual ~QuantObserver() = default;
  virtual OperandSums* operand(const LinearInfo& linear, Gemm gemm, Operand operand,
                               const QuantSpec& spec) = 0;
  /// Some rows of the quantised GEMM's output against the same rows computed from the unquantised operands.
  virtual DifferenceSums* product(const LinearInfo& linear, Gemm gemm) = 0;
  /// `spec` is fprop's.
  virtual WeightSums* weight(const LinearInfo&, const QuantSpec&) { return nullptr; }
  /// The residual stream behind a sublayer ("blocks.0.attention").
  virtual TensorSums* residual(const std::string&, std::size_t) { return nullptr; }
  virtual LogitSums* logits(const std::string&, std::size_t) { return nullptr; }
  /// Everything of the step was issued: the place to send the sums to the host.
  virtual void issued() {}
};

/// What a forward pass does not keep, and backward computes again: the same bits, since nothing random
/// depends on how often it is computed.
enum class Recomputation : std::uint8_t {
  None,   ///< everything is kept
  Light,  ///< outputs of norms, of SwiGLU and of Mamba-2's gate: no GEMM is done twice
  Block,  ///< all but each sublayer's input
};

/// How what a recipe leaves unquantised is stored.
inline DType storage_of(Format format) { return format == Format::Fp32 ? DType::F32 : DType::BF16; }

/// Everything a layer needs to know of the pass it takes part in. Plain data, one a micro-batch; a layer
/// keeps no step, recipe or stream of its own.
struct Context {
  Stream& stream;
  Arena& arena;                    ///< what forward keeps for backward, and backward's temporaries above it
  const Recipe& recipe;            ///< read by Linear alone
  DType activation = DType::BF16;  ///< storage of activations: F32 when the recipe's base is FP32
  DType residual = DType::BF16;    ///< storage of the residual stream
  DType residual_gradient = DType::F32;  ///< storage of its gradient
  DType logits = DType::F32;             ///< storage of the logits
  std::int64_t seq_len = 0;              ///< tokens of a sequence; a micro-batch is whole sequences
  std::int64_t step = 0;
  std::int64_t first_token = 0;  ///< of this micro-batch in the step's global batch
  std::uint64_t sr_seed = 0;     ///< key of stochastic rounding
  std::uint64_t weights_version =
      0;                 ///< changes whenever weights do: quantised weights are made once a version
  bool training = true;  ///< false: nothing is kept for a backward pass
  bool first_wgrad =
      false;  ///< wgrad overwrites main gradients instead of adding: a step's first micro-batch
  Recomputation recompute = Recomputation::None;
  bool repeatable = true;  ///< sums in one order in every run, also where another is faster
  /// The formats whose codes products multiply as they are (recipe/product.h); otherwise exact BF16 operands.
  /// On the host, where tensor cores are none, those ops decode: what a card multiplies, with its own sums.
  NativeGemm native{};
  /// The step's numbers in the backend's memory. With it random keys read their step there and faulty
  /// operands are noted there (linear_fault says which) instead of being waited for.
  StepRecord* record = nullptr;
  const AmaxState* amaxes = nullptr;  ///< where the recipe quantises under other amaxes than an operand's own
  QuantObserver* observer = nullptr;

  RealView activations(std::int64_t tokens, std::int64_t features) const {
    return arena.take_real(activation, tokens, features);
  }
  bool recomputes() const { return training && recompute != Recomputation::None; }
};

}  // namespace nibble
