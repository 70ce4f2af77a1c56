// SPDX-License-Identifier: Apache-2.0
#include "validate/branch_sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "validate/statistics.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr double kWindow = 0.05;  // as the final decision window of a comparison
constexpr int kWindowEvals = 5;

std::set<std::int64_t> steps_of_window(const RunLog& log, std::int64_t steps) {
  std::set<std::int64_t> out;
  const auto first = static_cast<double>(steps) * (1 - kWindow);
  for (const EvalEvent& e : log.evaluations)
    if (static_cast<double>(e.step) > first && e.step <= steps) out.insert(e.step);
  return out;
}

/// Steps of the last 5 % at which every given log has an evaluation; without logs five of them.
std::vector<std::int64_t> window_steps(std::int64_t steps, const std::vector<const RunLog*>& logs) {
  std::set<std::int64_t> common;
  if (logs.empty()) {
    const auto width = std::max<std::int64_t>(std::llround(kWindow * static_cast<double>(steps)), 1);
    for (int i = 1; i <= kWindowEvals; ++i)
      common.insert(steps - width +
                    std::max<std::int64_t>(std::llround(static_cast<double>(width * i) / kWindowEvals), 1));
  } else {
    common = steps_of_window(*logs.front(), steps);
    for (const RunLog* log : logs) {
      const std::set<std::int64_t> other = steps_of_window(*log, steps);
      std::erase_if(common, [&](std::int64_t s) { return !other.contains(s); });
    }
    common.insert(steps);
  }
  return {common.begin(), common.end()};
}

/// Mean loss over the window; NaN where an evaluation is missing.
double loss_of(const RunLog& log, const std::vector<std::int64_t>& at) {
  std::map<std::int64_t, double> losses;
  for (const EvalEvent& e : log.evaluations) losses[e.step] = e.loss;
  std::vector<double> values;
  for (const std::int64_t step : at) {
    const auto it = losses.find(step);
    if (it == losses.end()) return std::numeric_limits<double>::quiet_NaN();
    values.push_back(it->second);
  }
  return mean(values);
}

fs::path baseline_of(const RunPoint& start, const SweepRequest& request) {
  if (!request.baseline.empty()) {
    check_usage(fs::exists(fs::path(request.baseline) / "metrics.jsonl"),
                "--baseline {}: no metrics.jsonl there; name the folder of a training run or of an arm",
                request.baseline);
    return request.baseline;
  }
  const fs::path run = fs::absolute(start.run).lexically_normal(), beside = run.parent_path() / "baseline";
  return fs::exists(beside / "metrics.jsonl") && beside != run ? fs::proximate(beside) : fs::path{};
}

std::string gemm_text(const OtherRecipe& other) {
  if (other.everything()) return "all";
  std::string text;
  for (const std::string& gemm : other.gemms) text += (text.empty() ? "" : "+") + gemm;
  return text;
}

void require_comparable(const RunLog& baseline, const RunLog& own, const fs::path& where) {
  check_usage(
      baseline.header.data == own.header.data && baseline.header.seed == own.header.seed &&
          baseline.header.steps == own.header.steps &&
          baseline.header.tokens_per_step == own.header.tokens_per_step,
      "{} is no baseline of this run: data, seed, steps and batch must be the same (data {} and {}, seed "
      "{} and {}, {} and {} steps of {} and {} tokens)",
      where.string(), baseline.header.data, own.header.data, baseline.header.seed, own.header.seed,
      baseline.header.steps, own.header.steps, baseline.header.tokens_per_step, own.header.tokens_per_step);
  check_usage(!baseline.evaluations.empty() && baseline.evaluations.back().step == baseline.header.steps,
              "{} is not finished: its last evaluation is not at step {}", where.string(),
              baseline.header.steps);
}

/// Trains the stretches of a sweep and knows where each can begin.
class Sweeper {
 public:
  Sweeper(const RunSetup& setup, const SweepPlan& plan, Stream& stream, bool resume,
          const SignalGuard& signals,
          const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console)
      : setup_(setup),
        plan_(plan),
        stream_(stream),
        resume_(resume),
        signals_(signals),
        make_console_(make_console) {}

  StretchResult train(const std::string& name, const std::string& label, const RunConfig& config,
                      const LearnerConfig& learner, const RunPoint& from, std::int64_t until) {
    Stretch s{.name = name,
              .label = label,
              .directory = plan_.directory / name,
              .config = config,
              .learner = learner,
              .until = until,
              .eval_steps = evaluations_after(from.state.step, until),
              .identity = fmt::format("{} to step {}", label, until)};
    StretchResult r = run_stretch(setup_, stream_, from, s, resume_, signals_, make_console_(s));
    signal = r.signal;
    return r;
  }

  StretchResult train_own(const std::string& name, const RunPoint& from, std::int64_t until) {
    const RunConfig& c = setup_.config();
    return train(name, c.precision.recipe, c,
                 setup_.learner(candidate_recipe(c), static_cast<std::uint64_t>(c.training.seed),
                                static_cast<std::uint64_t>(c.precision.sr_seed)),
                 from, until);
  }

  /// The run after `step` steps: a checkpoint of its own, or one that is trained from the nearest before it.
  std::optional<RunPoint> at(std::int64_t step) {
    RunPoint own = run_point_before(plan_.run, step, plan_.sets);
    if (reached_ && reached_->state.step > own.state.step) own = *reached_;
    if (own.state.step < step) {
      const StretchResult way = train_own(fmt::format("way_{:06}", step), own, step);
      if (signal != 0) return {};
      check(way.broken.empty(), "the run itself is {} on the way to step {}", way.broken, step);
      own.checkpoint = way.checkpoint;
      own.state = read_checkpoint_state(way.checkpoint);
    }
    reached_ = own;
    return own;
  }

  int signal = 0;

 private:
  std::vector<std::int64_t> evaluations_after(std::int64_t from, std::int64_t until) const {
    std::set<std::int64_t> out;
    for (const std::int64_t s : plain_eval_steps(setup_.config().training.steps, setup_.config().eval.every))
      if (s > from && s <= until) out.insert(s);
    for (const std::int64_t s : plan_.eval_steps)
      if (s > from && s <= until) out.insert(s);
    return {out.begin(), out.end()};
  }

  const RunSetup& setup_;
  const SweepPlan& plan_;
  Stream& stream_;
  bool resume_;
  const SignalGuard& signals_;
  const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console_;
  std::optional<RunPoint> reached_;
};

}  // namespace

std::vector<StepMark> sweep_marks(const std::string& text) {
  std::string rest = text.starts_with("at=") ? text.substr(3) : text;
  std::vector<StepMark> out;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    out.push_back({rest.substr(0, comma)});
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  check_usage(!out.empty() && out.front().text.find('=') == std::string::npos,
              "--sweep {} names no steps; write at=60%,70%,80% or at=600,700", text);
  return out;
}

SweepPlan plan_sweep(const RunSetup& setup, const RunPoint& start, const SweepRequest& request,
                     const std::vector<std::string>& sets) {
  const RunConfig& c = setup.config();
  const std::int64_t steps = c.training.steps;
  SweepPlan p{
      .request = request, .directory = start.run / "branches" / "sweep", .run = start.run, .sets = sets};
  std::set<std::int64_t> points;
  for (const StepMark& mark : request.at) {
    const std::int64_t step = step_of(mark, steps, "--sweep at");
    check_usage(step >= 1 && step < steps, "--sweep at={}: step {} is not inside the run of {} steps",
                mark.text, step, steps);
    points.insert(step);
  }
  p.points.assign(points.begin(), points.end());
  const std::int64_t tokens = c.micro_batch() * c.training.sequence;
  for (const std::int64_t from : p.points) {
    std::vector<OtherRecipe> others{{request.recipe, request.gemms}};
    if (request.forward_too && request.gemms.empty()) others.push_back({request.recipe, {"fprop"}});
    for (const OtherRecipe& other : others) {
      check_recipe(candidate_recipe(switched_config(c, from, other)), linears(setup.model()), tokens);
      p.arms.push_back({from, other, fmt::format("at_{:06}_{}", from, gemm_text(other))});
    }
  }
  const RunLog own = read_run_log(p.run / "metrics.jsonl");
  p.candidate_logged = !own.evaluations.empty() && own.evaluations.back().step == steps;
  p.baseline = baseline_of(start, request);
  std::vector<const RunLog*> logs;
  RunLog baseline;
  if (!p.baseline.empty()) {
    baseline = read_run_log(p.baseline / "metrics.jsonl");
    require_comparable(baseline, own, p.baseline);
    logs.push_back(&baseline);
  }
  if (p.candidate_logged) logs.push_back(&own);
  p.eval_steps = window_steps(steps, logs);
  return p;
}

Sweep judge_sweep(const SweepPlan& plan, const RunLog& candidate, const std::optional<RunLog>& baseline,
                  const std::vector<StretchResult>& logs) {
  check(logs.size() == plan.arms.size() && !logs.empty(), "a sweep of {} switches has {} logs",
        plan.arms.size(), logs.size());
  Sweep s{.run = plan.run.string(), .other = plan.request.recipe, .recover = plan.request.recover};
  s.recipe = candidate.header.recipe;
  s.steps = candidate.header.steps, s.tokens_per_step = candidate.header.tokens_per_step;
  s.eval_steps = plan.eval_steps;
  s.candidate = loss_of(candidate, plan.eval_steps);
  s.has_baseline = baseline.has_value();
  s.reference = loss_of(baseline ? *baseline : logs.front().log, plan.eval_steps);
  s.reference_name = baseline ? plan.baseline.string() : plan.arms.front().name;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const SweepArm& arm = plan.arms[i];
    SweepRow row{.from = arm.from,
                 .gemms = gemm_text(arm.other),
                 .broken = logs[i].broken,
                 .gap = {},
                 .recovered = {}};
    row.loss = loss_of(logs[i].log, plan.eval_steps);
    if (baseline) row.gap = (row.loss - s.reference) / s.reference;
    if (s.candidate > s.reference && std::isfinite(row.loss))
      row.recovered = (s.candidate - row.loss) / (s.candidate - s.reference);
    row.share = static_cast<double>(s.steps - arm.from) / static_cast<double>(s.steps);
    for (const TrainEvent& e : logs[i].log.train) row.seconds += e.step_ms / 1e3;
    if (row.recovered && *row.recovered >= s.recover) {
      auto& latest = arm.other.everything() ? s.latest_all : s.latest_forward;
      if (arm.other.everything() || row.gemms == "fprop") latest = std::max(latest.value_or(0), arm.from);
    }
    s.rows.push_back(row);
  }
  return s;
}

SweepRun run_sweep(const RunSetup& setup, const SweepPlan& plan, Stream& stream, bool resume,
                   const SignalGuard& signals,
                   const std::function<std::shared_ptr<ConsoleSink>(const Stretch&)>& make_console) {
  SweepRun out;
  Sweeper sweeper(setup, plan, stream, resume, signals, make_console);
  const std::int64_t steps = setup.config().training.steps;
  std::vector<StretchResult> logs;
  std::optional<RunPoint> point;
  for (const SweepArm& arm : plan.arms) {
    if (!point || point->state.step != arm.from) point = sweeper.at(arm.from);
    if (point) {
      require_same_run(setup, *point);
      const RunConfig c = switched_config(setup.config(), arm.from, arm.other);
      logs.push_back(sweeper.train(arm.name, label_under(label_at(setup.config(), arm.from), arm.other), c,
                                   switched_learner(setup, c, arm.other), *point, steps));
    }
    out.signal = sweeper.signal;
    if (out.signal != 0) return out;
  }
  RunLog candidate;
  if (plan.candidate_logged) {
    candidate = read_run_log(plan.run / "metrics.jsonl");
  } else {
    candidate = sweeper.train_own("candidate", *point, steps).log;
    out.signal = sweeper.signal;
    if (out.signal != 0) return out;
  }
  std::optional<RunLog> baseline;
  if (!plan.baseline.empty()) baseline = read_run_log(plan.baseline / "metrics.jsonl");
  out.result = judge_sweep(plan, candidate, baseline, logs);
  write_json(plan.directory / "sweep.json", sweep_json(out.result));
  return out;
}

namespace {

std::string latest_sentence(const Sweep& s, const std::optional<std::int64_t>& latest, const char* what) {
  if (!latest) return fmt::format("No switch of {} recovers {:.0f} % of the gap.", what, 100 * s.recover);
  return fmt::format(
      "The latest switch of {} that recovers {:.0f} % of the gap is at step {} ({:.0f} % of the run): "
      "{:.1f} % of the tokens in {}.",
      what, 100 * s.recover, *latest, 100 * static_cast<double>(*latest) / static_cast<double>(s.steps),
      100 * (1 - static_cast<double>(*latest) / static_cast<double>(s.steps)), s.other);
}

std::vector<std::string> sentences(const Sweep& s) {
  std::vector<std::string> out;
  if (!s.has_baseline)
    out.push_back(
        fmt::format("There is no run in {} from the start, so the share is of what the earliest switch ({}) "
                    "gains, not of the gap to such a run; --baseline names one.",
                    s.other, s.reference_name));
  if (!(s.candidate > s.reference)) {
    out.push_back(fmt::format("The run ends at {:.5f}, the reference at {:.5f}: there is no gap to recover.",
                              s.candidate, s.reference));
    return out;
  }
  const auto has = [&](bool all) {
    return std::any_of(s.rows.begin(), s.rows.end(),
                       [&](const SweepRow& r) { return (r.gemms == "all") == all; });
  };
  if (has(true)) out.push_back(latest_sentence(s, s.latest_all, "all GEMMs"));
  if (has(false)) out.push_back(latest_sentence(s, s.latest_forward, "the forward GEMM alone"));
  out.push_back(
      "One run a switch: differences below the noise of a pair (nibble validate measures it) are none.");
  return out;
}

}  // namespace

std::string sweep_text(const Sweep& s) {
  std::string text = fmt::format(
      "{}: {} steps in {}, switched to {}; losses are means over {} evaluations up to the last step\n", s.run,
      s.steps, s.recipe, s.other, s.eval_steps.size());
  text += fmt::format("{:>8} {:>7} {:>8} {:>10} {:>10} {:>10} {:>9}\n", "switch", "of run", "gemms", "loss",
                      "gap", "recovered", "time");
  text += fmt::format(
      "{:>8} {:>7} {:>8} {:>10.5f} {:>10} {:>10}\n", "never", "", "", s.candidate,
      s.has_baseline ? fmt::format("{:+.3f} %", 100 * (s.candidate - s.reference) / s.reference) : "", "0 %");
  for (const SweepRow& r : s.rows)
    text += fmt::format("{:>8} {:>6.1f}% {:>8} {:>10.5f} {:>10} {:>10} {:>9}{}\n", r.from,
                        100 * static_cast<double>(r.from) / static_cast<double>(s.steps), r.gemms, r.loss,
                        r.gap ? fmt::format("{:+.3f} %", 100 * *r.gap) : "",
                        r.recovered ? fmt::format("{:.0f} %", 100 * *r.recovered) : "",
                        short_duration(r.seconds), r.broken.empty() ? "" : " " + r.broken);
  text += fmt::format("{:>8} {:>7} {:>8} {:>10.5f}   {}\n", s.has_baseline ? "start" : "", "", "",
                      s.reference, s.reference_name);
  for (const std::string& line : sentences(s)) text += line + "\n";
  return text;
}

Json sweep_json(const Sweep& s) {
  const auto maybe = [](const auto& v) { return v ? Json(*v) : Json(); };
  Json rows = Json::array();
  for (const SweepRow& r : s.rows)
    rows.push_back({{"switch_step", r.from},
                    {"gemms", r.gemms},
                    {"loss", json_from_double(r.loss)},
                    {"gap", maybe(r.gap)},
                    {"recovered", maybe(r.recovered)},
                    {"share_of_tokens", r.share},
                    {"seconds", r.seconds},
                    {"broken", r.broken}});
  return {{"schema", 1},
          {"run", s.run},
          {"recipe", s.recipe},
          {"other", s.other},
          {"steps", s.steps},
          {"recover", s.recover},
          {"candidate_loss", json_from_double(s.candidate)},
          {"reference_loss", json_from_double(s.reference)},
          {"reference", s.reference_name},
          {"has_baseline", s.has_baseline},
          {"evaluations", s.eval_steps},
          {"switches", rows},
          {"latest_all", maybe(s.latest_all)},
          {"latest_forward", maybe(s.latest_forward)},
          {"sentences", sentences(s)}};
}

}  // namespace nibble
