// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"
#include "plan/hardware.h"
#include "recipe/resolve.h"

/// What a model does in a step, as sizes: everything that time and memory are computed from.
namespace nibble {

/// A sparse (mixture of experts) model as its publisher sums it up. The planner knows nothing finer of it.
struct SparseModel {
  double total_parameters = 0, active_parameters = 0;  ///< embeddings included
  std::int64_t blocks = 0, d_model = 0, vocab = 0;
  std::int64_t attention_blocks = 0, attention_width = 0;  ///< heads * head_dim
  std::int64_t top_k = 0, expert_hidden = 0;               ///< experts a token visits, width of one
};

/// A model that can be planned: a preset of the trainer, or a description for planning alone.
struct PlanModel {
  std::string name, summary;
  std::optional<DecoderSpec> dense;   ///< exact
  std::optional<SparseModel> sparse;  ///< the other case
  std::int64_t extra_parameters = 0;  ///< that DecoderSpec has no word for
  std::string extra_what;             ///< which: "biases, learned positions"
  std::optional<int> bf16_first, bf16_last;
};

std::int64_t plan_parameters(const PlanModel& model);

/// Presets of the trainer first, then descriptions for planning alone. Throws Error{Usage} naming the
/// nearest.
PlanModel find_plan_model(std::string_view name);
std::vector<PlanModel> plan_only_models();

struct LinearWork {
  LinearInfo info;
  ResolvedLinear resolved;
};

struct Workload {
  std::string model, recipe;
  std::vector<LinearWork> linears;
  std::int64_t blocks = 0, d_model = 0, vocab = 0;
  double parameters = 0;         ///< stored
  double linear_parameters = 0;  ///< of the linears, stored (all experts)
  double matmul_parameters = 0;  ///< that a token is multiplied by, head included
  int sublayers = 0;
  double residual_gradient_bytes =
      0;  ///< an element: the sum, and the copy that mixers read where it is FP32
  std::int64_t heads = 0, kv_heads = 0;  ///< of one attention layer; 0: none
  std::int64_t ffn_quantum = 0;          ///< smallest hidden width of an MLP, or 0
  double attention_width = 0;            ///< sum over attention layers of heads * head_dim
  double qkv_width = 0;                  ///< sum over attention layers of (heads + 2 kv_heads) head_dim
  double swiglu_width = 0, relu2_width = 0;
  double scan_inner = 0, scan_state = 0, scan_chunk = 0;  ///< sums of di, di * state, di * state / chunk
  double conv_width = 0;
  double dispatch_width = 0;  ///< sum over expert layers of top_k * d_model
  bool exact = true;          ///< false: a sparse model, known by totals

  double linear_flops() const;  ///< a token, forward and backward, as models/flops.h counts
  double head_flops() const { return 6.0 * static_cast<double>(vocab * d_model); }
  double attention_flops(double sequence) const {
    return 6.0 * attention_width * sequence;
  }  ///< causal: half
  double scan_flops() const { return 21.0 * scan_state; }
  double flops(double sequence) const {
    return linear_flops() + head_flops() + attention_flops(sequence) + scan_flops();
  }
};

/// The workload of `model` under `recipe` at `step`: which linear computes in what is the resolver's answer,
/// the one that the trainer gets. Throws Error{Usage} as check_recipe does.
Workload make_workload(const PlanModel& model, const Recipe& recipe, std::int64_t tokens,
                       std::int64_t step = 0);

/// `recipe` with the counts of BF16 blocks that the model's source states, where the recipe has scaled
/// counts.
Recipe recipe_for(const PlanModel& model, const Recipe& recipe);

/// What kind of product a GEMM is: BF16 unless both operands are quantised alike.
Rate rate_of(const GemmRecipe& gemm);

/// Share of the linears' FLOPs in each kind, in the order of kRates.
struct RateShares {
  double share[4] = {};
};
RateShares linear_shares(const Workload& work);

}  // namespace nibble
