// SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/recipes.h"

namespace nibble {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

[[noreturn]] void refuse_memory(const Plan& plan) {
  const PlanRequest& r = plan.request;
  const auto near = nearest_fitting_layout(plan.work, r.hardware, r.layout);
  const std::string need = fmt::format("{} in {} needs {:.1f} GiB a GPU with {}, but {} has {:.1f} GiB",
                                       plan.work.model, plan.work.recipe, plan.memory.total / kGib,
                                       r.layout.text(), r.hardware.name, plan.memory.usable / kGib);
  check_usage(near.has_value(), "{}; no layout of up to 64 times as many GPUs fits", need);
  fail_usage("{}; the nearest layout that fits is {}", need, near->text());
}

ParallelLayout choose_layout(const PlanRequest& r, const Workload& work) {
  const auto found = fastest_layout(work, r.hardware, r.layout);
  if (found) return *found;
  const auto near = nearest_fitting_layout(work, r.hardware, r.layout);
  check_usage(near.has_value(), "{} fits {} in no layout of up to 64 times {} GPUs", work.model,
              r.hardware.name, r.layout.gpus);
  fail_usage(
      "{} on {} {} with a global batch of {}: no layout both divides and fits; the nearest that works is {}",
      work.model, r.layout.gpus, r.hardware.name, r.layout.global_batch, near->text());
}

double hours_for(double tokens, const StepTime& time, const ParallelLayout& layout) {
  return tokens / (time.tokens_per_gpu_s * static_cast<double>(layout.gpus)) / 3600;
}

bool uses(const Workload& work, Rate rate) { return linear_shares(work).share[static_cast<int>(rate)] > 0; }

void equal_loss(Plan& p) {
  const PlanRequest& r = p.request;
  p.gap = r.gap ? *r.gap : published_gap(p.work, r.tokens);
  p.equal.token_ratio = token_ratio(p.work.matmul_parameters, r.tokens, p.gap.relative);
  p.equal.hours = p.hours * p.equal.token_ratio;
  if (p.gap.relative <= 0 || r.switch_share <= 0) return;
  const Workload bf16 = make_workload(r.model, find_recipe("bf16"), r.layout.micro_batch * r.layout.sequence);
  // BF16 needs more memory than the recipe; the layout of the last stretch may have to differ.
  const auto layout = memory_of(bf16, r.layout, r.hardware).fits()
                          ? std::optional(r.layout)
                          : fastest_layout(bf16, r.hardware, r.layout);
  if (!layout) return;
  const double slow = hours_for(r.tokens, step_time(bf16, *layout, r.hardware), *layout);
  p.equal.switched_hours = (1 - r.switch_share) * p.hours + r.switch_share * slow;
}

void warn(Plan& p) {
  const Hardware& h = p.request.hardware;
  for (const Rate rate : {Rate::Fp4, Rate::Mxfp8, Rate::Fp8}) {
    if (uses(p.work, rate) && !h.native(rate)) {
      p.warnings.push_back(
          fmt::format("{} has no {} products: they are emulated by BF16 ones, so this recipe costs time "
                      "here and saves none",
                      h.name, name(rate)));
    }
  }
  if (!p.work.exact) {
    p.warnings.push_back(
        "a mixture of experts known by its totals: against the published rows such predictions are off by 24 "
        "to 70 % "
        "(median, by model), mostly too fast");
  }
  if (p.work.scan_inner > 0) {
    p.warnings.push_back("hybrid: published gains of NVFP4 over MXFP8 for hybrids are 2 to 4 %");
  }
  if (p.time.model_tflops > 0 && p.work.matmul_parameters < 3e9 && uses(p.work, Rate::Fp4) &&
      h.native(Rate::Fp4)) {
    p.warnings.push_back("small model: at about 1B parameters some 60 % of a step is untouched by FP4");
  }
}

}  // namespace

double EqualLoss::best_hours() const { return switched_hours > 0 ? std::min(hours, switched_hours) : hours; }

double product_gain_cap(double kept, const Hardware& hardware, Rate rate) {
  if (!hardware.native(rate)) return 1;
  return 1 / (kept + (1 - kept) * hardware.bf16.dense / hardware.rate(rate).dense);
}

Plan make_plan(const PlanRequest& request) {
  Plan p;
  p.request = request;
  PlanRequest& r = p.request;
  r.recipe = recipe_for(r.model, r.recipe);
  check_usage(r.tokens > 0 && std::isfinite(r.tokens), "a plan needs a positive number of tokens");
  check_usage(r.switch_share >= 0 && r.switch_share < 1,
              "the share of the tokens after the switch, {}, is not in [0, 1)", r.switch_share);
  check_hardware(r.hardware);
  p.work = make_workload(r.model, r.recipe, r.layout.sequence);
  if (r.search_layout) r.layout = choose_layout(r, p.work);
  check_layout(p.work, r.layout);
  p.memory = memory_of(p.work, r.layout, r.hardware);
  if (!p.memory.fits()) refuse_memory(p);
  p.largest_micro_batch = largest_micro_batch(p.work, r.layout, r.hardware);
  p.time = step_time(p.work, r.layout, r.hardware);
  p.hours = hours_for(r.tokens, p.time, r.layout);
  equal_loss(p);
  const double gpus = static_cast<double>(r.layout.gpus);
  p.cost = p.hours * gpus * r.price;
  p.equal_cost = p.equal.best_hours() * gpus * r.price;
  p.energy_mwh = p.hours * gpus * r.hardware.watts * 1e-6;
  warn(p);
  return p;
}

std::vector<Plan> compare_plans(const PlanRequest& request, const std::vector<std::string>& recipes) {
  std::vector<Plan> plans;
  for (const std::string& name : recipes) {
    PlanRequest r = request;
    if (name != request.recipe.name) {
      r.recipe = find_plan_recipe(name);
      r.gap.reset();  // the user's verdict is about the recipe asked for, not about the others
    }
    plans.push_back(make_plan(r));
  }
  return plans;
}

std::vector<SweepPoint> sweep_gpus(const PlanRequest& request, std::int64_t from, std::int64_t to) {
  check_usage(from >= 1 && to >= from, "a sweep of gpus={}..{} is empty", from, to);
  std::vector<SweepPoint> points;
  for (std::int64_t gpus = from; gpus <= to; gpus *= 2) {
    PlanRequest r = request;
    r.layout.gpus = gpus;
    SweepPoint point{.gpus = gpus};
    try {
      point.plan = make_plan(r);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Usage) throw;
      point.why = e.what();
    }
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace nibble
