// SPDX-License-Identifier: Apache-2.0
#include "validate/branch.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "models/parameters.h"
#include "validate/arm_log.h"
#include "validate/compare.h"
#include "validate/protocol.h"

namespace nibble {
namespace {

constexpr std::int64_t kFewestSteps = 6;  // three evaluations in the second half

/// What the arms' folder says of them: "step_00001000_bf16_fprop".
std::string folder_of(std::int64_t from, const OtherRecipe& other) {
  std::string name = checkpoint_name(from) + "_" + other.recipe;
  if (!other.everything())
    for (const std::string& gemm : other.gemms) name += "_" + gemm;
  return name;
}

std::vector<std::int64_t> evenly(std::int64_t from, std::int64_t until, std::int64_t count) {
  std::vector<std::int64_t> out{from};
  const auto width = static_cast<double>(until - from);
  for (std::int64_t i = 1; i <= count; ++i) {
    const std::int64_t at = from + std::llround(width * static_cast<double>(i) / static_cast<double>(count));
    if (at > out.back()) out.push_back(at);
  }
  return out;
}

/// Evaluations by steps since `from`, that at `from` left out: both arms are one there.
std::vector<EvalPoint> since(const RunLog& log, std::int64_t from, std::int64_t tokens_per_step) {
  std::vector<EvalPoint> out;
  for (const EvalEvent& e : log.evaluations)
    if (e.step > from) out.push_back({e.step - from, (e.step - from) * tokens_per_step, e.loss});
  return out;
}

void add_rows(Branch& b, const StretchResult& branch, const StretchResult& candidate,
              const std::optional<StretchResult>& aa) {
  std::map<std::int64_t, double> candidates, again;
  for (const EvalEvent& e : candidate.log.evaluations) candidates[e.step] = e.loss;
  if (aa)
    for (const EvalEvent& e : aa->log.evaluations) again[e.step] = e.loss;
  for (const EvalEvent& e : branch.log.evaluations) {
    const auto c = candidates.find(e.step);
    if (c == candidates.end()) continue;
    BranchRow row{.step = e.step,
                  .tokens = (e.step - b.from) * b.tokens_per_step,
                  .branch = e.loss,
                  .candidate = c->second,
                  .aa = {}};
    if (const auto a = again.find(e.step); a != again.end()) row.aa = a->second;
    row.gap = (row.candidate - row.branch) / row.branch;
    b.rows.push_back(row);
  }
}

/// The noise of the pair and the mean gap over the second half.
void add_gap(Branch& b, const BranchRequest& request, const std::optional<StretchResult>& aa) {
  const std::int64_t steps = b.until - b.from;
  const DecisionWindow half{"branch", steps / 2, steps, b.limit.value_or(0)};
  PairData pair{.pair = 1,
                .baseline = since(b.branch_log, b.from, b.tokens_per_step),
                .candidate = since(b.candidate_log, b.from, b.tokens_per_step),
                .candidate_aa = {}};
  if (aa) pair.candidate_aa = since(b.aa_log, b.from, b.tokens_per_step);
  NoiseRule rule;
  std::string floor_source;
  if (!request.noise.empty()) {
    const PairNoise given = pair_noise_from(request.noise);
    rule.assumed_sigma = given.sigma, floor_source = given.source;
  } else if (aa) {
    // Measured on this very branch; the published floor is of whole runs with their own start values.
    rule.assumed_sigma = 0;
  }
  b.noise = noise_of({pair}, half, rule);
  if (b.noise.assumed && !floor_source.empty())
    b.noise.source = floor_source;
  else if (b.noise.assumed)
    b.noise.source =
        fmt::format("assumed {:.2f} %, of whole runs; --aa measures it here", 100 * b.noise.floor);
  b.gap = mean(gaps_in(paired_gaps(pair.baseline, pair.candidate), half));
  const double reach = b.noise.reach(0.975);
  b.ci95 = {b.gap - reach, b.gap + reach};
  if (!b.limit) return;
  const double bound = b.noise.reach(0.95);
  b.outcome = b.gap + bound < *b.limit   ? Outcome::Pass
              : b.gap - bound > *b.limit ? Outcome::Fail
                                         : Outcome::Inconclusive;
}

void add_cost(Branch& b, const char* arm, const std::string& label, const RunLog& log) {
  BranchCost cost{.arm = arm, .label = label};
  for (const TrainEvent& e : log.train) cost.tokens += b.tokens_per_step, cost.seconds += e.step_ms / 1e3;
  b.costs.push_back(cost);
}

/// Holds the candidate against what the run itself logged for the same steps.
void add_repeated(Branch& b, const RunPoint& point) {
  const std::filesystem::path path = point.run / "metrics.jsonl";
  if (!std::filesystem::exists(path)) return;
  std::map<std::int64_t, const TrainEvent*> own;
  const RunLog log = read_run_log(path);
  if (log.header.backend != b.candidate_log.header.backend) return;
  for (const TrainEvent& e : log.train) own[e.step] = &e;
  for (const TrainEvent& e : b.candidate_log.train) {
    const auto it = own.find(e.step);
    if (it == own.end()) continue;
    if (it->second->loss == e.loss && it->second->grad_norm == e.grad_norm) {
      ++b.repeated;
    } else {
      b.first_difference = e.step;
      return;
    }
  }
}

}  // namespace

std::int64_t tokens_from(const std::string& text, std::int64_t whole) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  double factor = 0;
  if (unit.empty()) factor = 1;
  if (unit == "k" || unit == "K") factor = 1e3;
  if (unit == "M") factor = 1e6;
  if (unit == "B") factor = 1e9;
  if (unit == "T") factor = 1e12;
  if (unit == "%") factor = static_cast<double>(whole) / 100;
  const double tokens = std::ceil(value * factor);
  check_usage(
      error == std::errc{} && factor > 0 && tokens >= 1 && tokens < 9e18,
      "--tokens {} is no number of tokens; write a share of the run (1%) or a count (500000, 20k, 1.5M, "
      "60B)",
      text);
  return static_cast<std::int64_t>(tokens);
}

BranchPlan plan_branch(const RunSetup& setup, const RunPoint& point, const BranchRequest& request) {
  require_same_run(setup, point);
  const RunConfig& c = setup.config();
  BranchPlan p{.request = request, .point = point, .directory = {}, .candidate = {}, .branch = {}, .aa = {}};
  p.from = point.state.step;
  const std::int64_t left = c.training.steps - p.from;
  check_usage(left >= kFewestSteps,
              "{} is at step {} of {}: {} steps are left and a branch takes {} at least; name an earlier "
              "checkpoint (checkpoint.every and checkpoint.keep decide which there are)",
              point.checkpoint.string(), p.from, c.training.steps, left, kFewestSteps);
  const std::int64_t tokens = tokens_from(request.tokens, c.training.steps * c.tokens_per_step());
  std::int64_t steps =
      request.steps > 0 ? request.steps : (tokens + c.tokens_per_step() - 1) / c.tokens_per_step();
  check_usage(
      steps >= kFewestSteps,
      "a branch of {} steps ({} tokens) is too short: its second half needs three evaluations; take {} "
      "steps or {} tokens at least",
      steps, steps * c.tokens_per_step(), kFewestSteps, kFewestSteps * c.tokens_per_step());
  check_usage(request.evaluations >= kFewestSteps, "--evals {}: a branch takes {} at least",
              request.evaluations, kFewestSteps);
  steps = std::min(steps, left);
  p.until = p.from + steps;
  p.eval_steps = evenly(p.from, p.until, request.evaluations);
  p.directory = point.run / "branches" / folder_of(p.from, request.other);

  const auto stretch = [&](const char* name, const std::string& label, const RunConfig& config,
                           const LearnerConfig& learner) {
    return Stretch{.name = name,
                   .label = label,
                   .directory = p.directory / name,
                   .config = config,
                   .learner = learner,
                   .until = p.until,
                   .eval_steps = p.eval_steps,
                   .identity = fmt::format("{} to step {}", label, p.until)};
  };
  const auto own = [&](std::uint64_t sr_seed) {
    return setup.learner(candidate_recipe(c), static_cast<std::uint64_t>(c.training.seed), sr_seed);
  };
  const auto sr_seed = static_cast<std::uint64_t>(c.precision.sr_seed);
  const std::string as_it_is = label_at(c, p.from);
  p.candidate = stretch("candidate", as_it_is, c, own(sr_seed));
  const RunConfig switched = switched_config(c, p.from, request.other);
  p.branch = stretch("branch", label_under(as_it_is, request.other), switched,
                     switched_learner(setup, switched, request.other));
  check_recipe(p.branch.learner.recipe, linears(setup.model()), c.micro_batch() * c.training.sequence);
  if (request.aa) {
    RunConfig other_key = c;
    other_key.precision.sr_seed = static_cast<std::int64_t>(aa_sr_seed(sr_seed));
    p.aa = stretch("candidate_aa", as_it_is, other_key, own(aa_sr_seed(sr_seed)));
  }
  return p;
}

Branch judge_branch(const BranchPlan& plan, std::int64_t parameters, const StretchResult& branch,
                    const StretchResult& candidate, const std::optional<StretchResult>& aa) {
  require_paired(branch.log, "branch", candidate.log, "candidate");
  if (aa) require_paired(branch.log, "branch", aa->log, "candidate_aa");
  Branch b;
  b.run = plan.point.run.string(), b.checkpoint = plan.point.checkpoint.string();
  b.recipe = plan.candidate.label, b.label = plan.branch.label;
  b.from = plan.from, b.until = plan.until, b.run_steps = plan.candidate.learner.schedule.steps;
  b.tokens_per_step = plan.candidate.learner.batch * plan.candidate.learner.sequence;
  b.parameters = parameters;
  b.limit = plan.request.limit;
  b.branch_log = branch.log, b.candidate_log = candidate.log;
  if (aa) b.aa_log = aa->log;
  const auto note = [&](const std::string& label, const StretchResult& r) {
    if (!r.broken.empty()) b.broken.push_back(fmt::format("{}: {}", label, r.broken));
  };
  note(b.label + " (branch)", branch);
  note(b.recipe + " (candidate)", candidate);
  if (aa) note(b.recipe + " (candidate_aa)", *aa);
  add_rows(b, branch, candidate, aa);
  if (!b.rows.empty() && b.rows.front().step == b.from)
    check(b.rows.front().branch == b.rows.front().candidate,
          "the arms differ before their first step ({} and {}): they did not start from the same weights",
          b.rows.front().branch, b.rows.front().candidate);
  if (b.broken.empty())
    add_gap(b, plan.request, aa);
  else
    b.gap = b.ci95[0] = b.ci95[1] = std::numeric_limits<double>::quiet_NaN();
  add_cost(b, "branch", b.label, branch.log);
  add_cost(b, "candidate", b.recipe, candidate.log);
  if (aa) add_cost(b, "candidate_aa", b.recipe, aa->log);
  add_repeated(b, plan.point);
  return b;
}

BranchRun run_branch(const RunSetup& setup, const BranchPlan& plan, Stream& stream, bool resume,
                     const SignalGuard& signals,
                     const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console) {
  BranchRun out;
  BaselineLosses baseline;
  const auto run = [&](const Stretch& stretch) {
    const auto console = make_console(stretch);
    if (console) console->attach_baseline(baseline);
    StretchResult r = run_stretch(setup, stream, plan.point, stretch, resume, signals, console);
    out.signal = r.signal;
    return r;
  };
  const StretchResult branch = run(plan.branch);
  if (out.signal != 0) return out;
  baseline = losses_of(branch.log);
  const StretchResult candidate = run(plan.candidate);
  if (out.signal != 0) return out;
  std::optional<StretchResult> aa;
  if (plan.aa) aa = run(*plan.aa);
  if (out.signal != 0) return out;
  out.result = judge_branch(plan, param_count(setup.model()), branch, candidate, aa);
  write_json(plan.directory / "branch.json", branch_json(out.result));
  return out;
}

}  // namespace nibble
