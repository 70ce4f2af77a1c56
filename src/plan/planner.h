// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory.h"
#include "plan/step_time.h"
#include "plan/tokens.h"

namespace nibble {

struct PlanRequest {
  PlanModel model;
  Recipe recipe;
  Hardware hardware;
  ParallelLayout layout;
  bool search_layout =
      false;  ///< tp, pp, micro-batch, sharding and recomputation are chosen, layout gives the rest
  double tokens = 1e12;
  double price = 0;        ///< a GPU-hour; 0: cost is not asked for
  std::optional<Gap> gap;  ///< empty: the published one
  double switch_share =
      0.18;  ///< of the tokens, at the end, in BF16: reached the FP8 loss at 12B and 10T [NVFP4]
};

/// What reaching the loss of a run without quantisation costs.
struct EqualLoss {
  double token_ratio = 1;     ///< tokens over those of the baseline; infinite: never
  double hours = 0;           ///< staying in the recipe to the end
  double switched_hours = 0;  ///< the last switch_share of the tokens in BF16; 0: nothing to switch
  double best_hours() const;
};

struct Plan {
  PlanRequest request;  ///< with the layout that was chosen
  Workload work;
  Memory memory;
  std::optional<std::int64_t> largest_micro_batch;
  StepTime time;
  Gap gap;
  double hours = 0;  ///< for the tokens asked for
  EqualLoss equal;
  double cost = 0, equal_cost = 0;  ///< in the price's unit; cost of best_hours()
  double energy_mwh = 0;            ///< board power of all GPUs over `hours`, nothing else of the building
  std::vector<std::string> warnings;
};

/// Throws Error{Usage} for a layout that does not divide or does not fit in memory; the text names the
/// nearest layout that works.
Plan make_plan(const PlanRequest& request);

/// The same run under other recipes, each with its own layout when the layout is searched.
std::vector<Plan> compare_plans(const PlanRequest& request, const std::vector<std::string>& recipes);

struct SweepPoint {
  std::int64_t gpus = 0;
  std::optional<Plan> plan;  ///< empty: nothing divides and fits
  std::string why;
};
std::vector<SweepPoint> sweep_gpus(const PlanRequest& request, std::int64_t from, std::int64_t to);

/// Layouts that divide and fit, of the same number of GPUs, batch and sequence.
std::vector<ParallelLayout> fitting_layouts(const Workload& work, const Hardware& hardware,
                                            const ParallelLayout& base);
/// The one with the shortest step; empty when none fits.
std::optional<ParallelLayout> fastest_layout(const Workload& work, const Hardware& hardware,
                                             const ParallelLayout& base);
/// The one nearest to `wanted`, with more GPUs if it must be.
std::optional<ParallelLayout> nearest_fitting_layout(const Workload& work, const Hardware& hardware,
                                                     const ParallelLayout& wanted);

/// Speed-up of the products over BF16 that `kept` (share of the linears in BF16) leaves at the peaks:
/// 1 / (kept + (1 - kept) bf16 / fp4). 15 % leave 2.76 of 4 on GB200 and 3.43 of 6 on GB300.
double product_gain_cap(double kept, const Hardware& hardware, Rate rate);

}  // namespace nibble
