// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "plan/workload.h"

namespace nibble {

/// What the backward pass computes again instead of reading it.
enum class Recompute : std::uint8_t {
  None,
  Selective,  ///< outputs of norms and of SwiGLU
  Full,       ///< everything but the input of each block
};
std::string_view name(Recompute r);
Recompute recompute_from_name(std::string_view name);  ///< throws Error{Usage}

/// How a step is spread over GPUs. tp x pp x cp x dp = gpus.
struct ParallelLayout {
  std::int64_t gpus = 1, tp = 1, pp = 1, cp = 1;
  std::int64_t vp = 1;              ///< model chunks a pipeline stage holds
  std::int64_t ep = 1;              ///< GPUs that the experts are spread over, inside dp
  bool fsdp = false;                ///< weights and gradients sharded over dp too, not the states alone
  std::int64_t micro_batch = 1;     ///< sequences
  std::int64_t global_batch = 256;  ///< sequences
  std::int64_t sequence = 8192;
  Recompute recompute = Recompute::None;
  std::int64_t head_chunk =
      0;  ///< tokens whose logits exist at once, as in layers/head.h; 0: all of a micro-batch

  std::int64_t dp() const { return gpus / (tp * pp * cp); }
  std::int64_t shards() const { return dp() * cp; }  ///< GPUs that have the same weights: states divide by it
  std::int64_t micro_batches() const { return global_batch / (dp() * micro_batch); }
  /// Tokens of a micro-batch on one GPU's share of the sequence.
  double micro_tokens() const {
    return static_cast<double>(micro_batch * sequence) / static_cast<double>(cp);
  }
  std::string text() const;  ///< "dp 8 x tp 4 x pp 8, micro-batch 1, ..."
};

/// Throws Error{Usage} for a layout that does not divide, naming the nearest one that works.
void check_layout(const Workload& work, const ParallelLayout& layout);
bool layout_divides(const Workload& work, const ParallelLayout& layout);

/// How far apart two layouts are, for "nearest": factors in each size, more GPUs being the dearest change and
/// another batch the cheapest.
double layout_distance(const ParallelLayout& a, const ParallelLayout& b);

}  // namespace nibble
