// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "io/json.h"
#include "recipe/resolve.h"
#include "train/learner.h"

/// Which layers of a trained model a recipe hurts, and which of them to keep in BF16 for a given share of the
/// FLOPs.
///
/// Everything is measured at the weights as they are, on a few batches, without a training step:
///   errors   of each GEMM of each linear against the product of the unquantised operands
///   loss     with one linear alone quantised, and with one linear alone kept
///   gradient of all parameters, with one linear alone quantised
/// A proposal is made from one half of the batches and judged on the other.
namespace nibble {

/// One GEMM of one linear, the linear alone being quantised, so that its operands are those of a BF16 run.
struct GemmProbe {
  bool quantized = false;  ///< by the recipe
  double error = 0;  ///< ||C - C'|| / ||C'||, C' of the BF16 operands, 16 rows a batch; rms over the batches
  double exact_error = 0;           ///< the same in an FP32 run: C' of operands that were never rounded
  std::array<double, 2> flushed{};  ///< of operands a and b: share of the values other than 0 that become 0
  std::array<double, 2> cosine{1, 1};  ///< of operands a and b, before and after
};

struct LayerProbe {
  LinearInfo linear;
  double flops_share = 0;          ///< of all linears
  std::array<GemmProbe, 3> gemms;  ///< indexed by Gemm
  double loss_only = 0;            ///< loss with this linear alone quantised - loss in BF16, nats
  double loss_kept = 0;            ///< loss with all quantised - loss with this one kept, nats
  double gradient_error = 0;       ///< ||g - g'|| / ||g'||, g' in BF16, this linear alone quantised
  /// What keeping it is worth: the mean of loss_only and loss_kept, or gradient_error squared (see Worth).
  double worth = 0;
  bool kept = false;  ///< by the proposal
};

/// A set of linears kept in BF16, measured on the held-out batches.
struct MapProbe {
  std::vector<std::string> kept;  ///< names, in the model's order
  double flops_share = 0;         ///< of all linears
  double loss = 0;                ///< nats a token
  double gap = 0;                 ///< loss - loss in BF16
  double gradient_error = 0;
};

enum class Worth : std::uint8_t {
  Loss,      ///< forward alone: what the loss gains now
  Gradient,  ///< forward and backward: what the step's direction gains
};

struct ProbeOptions {
  double budget = 0.2;  ///< share of the linears' FLOPs that may stay in BF16, 0 to 1
  Worth worth = Worth::Loss;
  bool exact = true;  ///< measure exact_error too, which doubles the work
};

/// Tokens and targets of whole sequences, `micro_batch` sequences of the learner each.
struct ProbeBatch {
  std::vector<std::int32_t> ids, targets;
};

struct Probe {
  std::string recipe;
  ProbeOptions options;
  std::int64_t step = 0;      ///< steps that the weights were trained for
  std::int64_t tokens = 0;    ///< of the batches measured; as many are held out
  double loss_bf16 = 0;       ///< on the batches measured
  double loss_quantized = 0;  ///< every linear quantised
  std::vector<LayerProbe> layers;
  double held_out_bf16 = 0;  ///< loss on the held-out batches
  MapProbe nothing;          ///< every linear quantised, on the held-out batches
  MapProbe by_position;      ///< the recipe's blocks at the two ends, as many as the budget pays for
  MapProbe proposed;
  /// Whether the proposal lies nearer to BF16 than the map by position, on the held-out batches, by its
  /// worth.
  bool better() const;
};

/// The learner's weights are read and its gradients overwritten; nothing else of it changes. `recipe` names
/// operands and formats; which linears it keeps and what attention's products do is not read. Half of
/// `batches` (at least two, the even ones) are measured, the others judge. Cost for L linears and K batches
/// measured: 2 L K forward passes and L K forward and backward, twice with exact. Throws Error{Usage} for a
/// recipe that quantises nothing or that the model cannot run, a budget outside 0 to 1, fewer than two
/// batches.
Probe probe(Learner& learner, Stream& stream, const Recipe& recipe, const std::vector<ProbeBatch>& batches,
            const ProbeOptions& options);

/// The linears that `budget` pays for, dearest for their FLOPs first: while some worth is left and it fits.
/// Pure.
std::vector<bool> choose_kept(const std::vector<LayerProbe>& layers, double budget);

/// As many blocks at the two ends, in the recipe's proportion (2 first to 8 last where it names none), as the
/// budget pays for; true for kept linears. Pure.
std::vector<bool> kept_by_position(const Recipe& recipe, const std::vector<LinearInfo>& linears,
                                   double budget);

std::string probe_text(const Probe& p);
Json probe_json(const Probe& p);
/// The lines to paste into [precision].
std::string probe_toml(const Probe& p);

}  // namespace nibble
