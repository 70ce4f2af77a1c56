// SPDX-License-Identifier: Apache-2.0
#include "validate/run_arms.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "eval/run_tasks.h"
#include "io/file.h"
#include "models/parameters.h"
#include "recipe/resolve.h"
#include "train/run_log.h"
#include "validate/decide.h"
#include "validate/noise_floor.h"
#include "validate/sequential.h"
#include "validate/task_comparison.h"

namespace nibble {
namespace {

/// The batch hash of every step an arm trained, and the hash of its initial weights, from its log.
struct ArmLog {
  std::string init;
  std::map<std::int64_t, std::uint64_t> batches;
  BaselineLosses losses;
  std::vector<double> grad_norms;  ///< of step 1, 2, ...
};

ArmLog read_log(const std::filesystem::path& path) {
  const RunLog events = read_run_log(path);
  ArmLog log{.init = events.header.init, .batches = {}, .losses = {}, .grad_norms = {}};
  for (const EvalEvent& e : events.evaluations) log.losses.val[e.step] = e.loss;
  for (const TrainEvent& e : events.train) {
    log.losses.train[e.step] = e.loss;
    log.batches[e.step] = e.batch_hash;
    log.grad_norms.push_back(e.grad_norm);
  }
  return log;
}

/// Throws unless both arms started from the same bytes and saw the same batches in every step they share.
void require_paired(const ArmSpec& a, const ArmLog& log_a, const ArmSpec& b, const ArmLog& log_b) {
  check(log_a.init == log_b.init,
        "{} and {} did not start from the same bytes ({} and {}): not a paired comparison", a.directory,
        b.directory, log_a.init, log_b.init);
  for (const auto& [step, hash] : log_b.batches) {
    const auto it = log_a.batches.find(step);
    check(it == log_a.batches.end() || it->second == hash,
          "{} and {} saw different batches in step {}: not a paired comparison. Were data files changed "
          "between "
          "the arms?",
          a.directory, b.directory, step);
  }
}

std::vector<EvalPoint> points(const std::vector<EvalEvent>& events) {
  std::vector<EvalPoint> out;
  for (const EvalEvent& e : events)
    if (e.step > 0) out.push_back({e.step, e.tokens, e.loss});
  return out;
}

class Arms {
 public:
  Arms(const RunSetup& setup, Stream& stream, const Protocol& protocol,
       const std::filesystem::path& directory, bool resume, const SignalGuard& signals)
      : setup_(setup),
        stream_(stream),
        protocol_(protocol),
        directory_(directory),
        resume_(resume),
        signals_(signals),
        tasks_(RunTasks::of(setup)) {}

  /// Trains one arm. Returns false when a signal ended it.
  bool run(const ArmSpec& arm, const std::shared_ptr<ConsoleSink>& console) {
    const bool is_baseline = arm.name == "baseline";
    const Recipe recipe = is_baseline ? baseline_recipe(setup_.config()) : candidate_recipe(setup_.config());
    Learner learner(stream_, setup_.learner(recipe, arm.seed, arm.sr_seed));
    const SampleOrder order = setup_.order(arm.seed);
    const RunData data{order, setup_.validation(), setup_.data().tokenizer};
    const RunPlan plan = plan_of(arm, learner);
    std::filesystem::create_directories(plan.directory);
    write_file(plan.directory / "run.toml", to_toml(config_of(arm)));
    if (console && !is_baseline) console->attach_baseline(baseline_log_.losses);

    AbortMonitor abort(protocol_.abort);
    const auto stop = [&](const EvalEvent& e) { return should_stop(abort, arm, e); };
    const bool judged = arm.name == "candidate" && setup_.config().protocol.abort;
    if (!train(learner, data, plan, console, arm, judged ? stop : std::function<bool(const EvalEvent&)>{}))
      return false;
    const ArmLog log = read_log(plan.directory / "metrics.jsonl");
    if (is_baseline) {
      baseline_ = arm;
      baseline_log_ = log;
    } else {
      require_paired(baseline_, baseline_log_, arm, log);
      compare_gradients(arm, log, console);
    }
    return true;
  }

  Evidence evidence;

 private:
  bool train(Learner& learner, const RunData& data, const RunPlan& plan,
             const std::shared_ptr<ConsoleSink>& console, const ArmSpec& arm,
             const std::function<bool(const EvalEvent&)>& stop) {
    PairData& pair = pair_of(arm);
    try {
      const RunResult result = run_training(learner, data, plan, console, signals_, stop);
      if (result.end == RunEnd::Signal) return false;
      curve_of(pair, arm) = points(result.evaluations);
      for (AlarmEvent alarm : result.alarms) {
        alarm.arm = arm.directory;
        evidence.alarms.push_back(std::move(alarm));
      }
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::NonFinite || arm.name == "baseline") throw;
      // The candidate's own failure is the answer, not an accident: it is judged.
      const std::int64_t step = learner.steps_done();
      curve_of(pair, arm) = points(read_run_log(plan.directory / "metrics.jsonl").evaluations);
      AlarmEvent alarm;
      alarm.step = step;
      alarm.severity = Severity::Fault;
      alarm.rule = "non_finite";
      alarm.text = e.what();
      alarm.arm = arm.directory;
      evidence.alarms.push_back(alarm);
      evidence.abort = AbortRecord{.step = step,
                                   .tokens = step * protocol_.tokens_per_step,
                                   .rule = "non_finite",
                                   .arm = arm.directory};
      if (console) console->on(alarm);
    }
    return true;
  }

  /// At equal weights and batches the gradients are nearly equal, whatever the precision: a candidate whose
  /// gradients are not is faulty, even where the optimizer hides it and the losses look well.
  void compare_gradients(const ArmSpec& arm, const ArmLog& log, const std::shared_ptr<ConsoleSink>& console) {
    auto alarm = check_gradient_norms(baseline_log_.grad_norms, log.grad_norms, protocol_.alarms);
    if (!alarm) return;
    alarm->arm = arm.directory;
    if (console) console->on(*alarm);
    evidence.alarms.push_back(*std::move(alarm));
  }

  bool should_stop(AbortMonitor& abort, const ArmSpec& arm, const EvalEvent& e) {
    if (e.step == 0) return false;
    const auto it = baseline_log_.losses.val.find(e.step);
    if (it == baseline_log_.losses.val.end()) return false;
    const double gap = (e.loss - it->second) / it->second;
    const double sigma = noise_before(protocol_.noise);
    if (!abort.push(e.step, gap, sigma)) return false;
    evidence.abort = AbortRecord{.step = e.step,
                                 .tokens = e.tokens,
                                 .gap = gap,
                                 .threshold = abort.threshold(sigma),
                                 .rule = "sustained_gap",
                                 .arm = arm.directory};
    return true;
  }

  RunPlan plan_of(const ArmSpec& arm, const Learner& learner) {
    // A learner is built with its start values, so the header holds their hash also when the arm resumes.
    RunPlan plan = setup_.plan(learner, stream_.kind());
    plan.directory = directory_ / arm.directory;
    plan.eval_steps = protocol_.eval_steps;
    plan.eval_steps.insert(plan.eval_steps.begin(), 0);
    plan.alarms = protocol_.alarms;
    plan.resume = resume_;
    plan.identity["arm"] = arm.directory;
    plan.identity["protocol"] = plan.header.protocol = protocol_hash(protocol_);
    plan.header.arm = arm.name;
    if (arm.name != "candidate_aa") RunTasks::attach(tasks_, protocol_.tasks.steps, plan);
    return plan;
  }

  /// The configuration that would train this arm alone.
  RunConfig config_of(const ArmSpec& arm) const {
    RunConfig c = setup_.config();
    if (arm.name == "baseline") c.precision = PrecisionSection{};
    c.precision.recipe = arm.recipe;
    c.precision.sr_seed = static_cast<std::int64_t>(arm.sr_seed);
    c.training.seed = static_cast<std::int64_t>(arm.seed);
    return c;
  }

  PairData& pair_of(const ArmSpec& arm) {
    for (PairData& p : evidence.pairs)
      if (p.pair == arm.pair) return p;
    evidence.pairs.push_back({.pair = arm.pair, .baseline = {}, .candidate = {}, .candidate_aa = {}});
    return evidence.pairs.back();
  }

  static std::vector<EvalPoint>& curve_of(PairData& pair, const ArmSpec& arm) {
    if (arm.name == "baseline") return pair.baseline;
    return arm.name == "candidate" ? pair.candidate : pair.candidate_aa;
  }

  const RunSetup& setup_;
  Stream& stream_;
  const Protocol& protocol_;
  std::filesystem::path directory_;
  bool resume_;
  const SignalGuard& signals_;
  std::shared_ptr<const RunTasks> tasks_;  ///< null: none
  ArmSpec baseline_;                       ///< of the pair at hand
  ArmLog baseline_log_;
};

/// Writes the protocol, or makes sure that the one that is there is the same.
void freeze(const Protocol& protocol, const std::filesystem::path& directory, bool resume) {
  const std::filesystem::path path = directory / "protocol.json";
  if (resume && std::filesystem::exists(path)) {
    const Protocol frozen = protocol_from_text(read_file(path));
    check_usage(
        protocol_hash(frozen) == protocol_hash(protocol),
        "{} was frozen with another protocol ({}, this configuration means {}): a run in progress cannot be "
        "judged by new rules. Restore the configuration, or start a new run under another training.name",
        path.string(), protocol_hash(frozen), protocol_hash(protocol));
    return;
  }
  write_file(path, canonical_text(protocol));
}

/// The experiment whose noise this configuration would measure.
NoiseFloor experiment_of(const RunSetup& setup) {
  const RunConfig& c = setup.config();
  return {.recipe = candidate_recipe(c).name,
          .parameters = param_count(setup.model()),
          .validation = setup.contract().at("validation"),
          .settings = noise_settings(maths_values(c))};
}

void store_noise_floor(const RunSetup& setup, const Comparison& c, const std::vector<PairData>& pairs,
                       const std::optional<NoiseFloor>& given) {
  // A candidate that broke or was faulty has no noise that a sound run shares.
  const auto fault = [](const AlarmEvent& a) { return a.severity == Severity::Fault; };
  const Verdict& v = c.verdict;
  if (v.identical || v.abort || std::any_of(v.alarms.begin(), v.alarms.end(), fault)) return;
  const auto floor = measured_floor(experiment_of(setup), c.protocol, pairs, given ? &*given : nullptr);
  if (floor) write_file(c.directory / "noise_floor.json", noise_floor_to_json(*floor));
}

/// The last evaluations at which both arms score the tasks.
TaskRule task_rule(const RunTasks& tasks, const Protocol& p, std::int64_t points) {
  const auto all = static_cast<std::int64_t>(p.eval_steps.size());
  return {.names = tasks.names(),
          .hash = tasks.hash(),
          .steps = {p.eval_steps.end() - std::min(points, all), p.eval_steps.end()}};
}

/// First steps of another precision in the candidate, in order.
std::vector<std::int64_t> switch_steps(const Recipe& recipe, std::int64_t steps) {
  std::vector<std::int64_t> out = change_points(recipe);
  std::erase_if(out, [steps](std::int64_t step) { return step <= 0 || step >= steps; });
  return out;
}

}  // namespace

Protocol protocol_of(const RunSetup& setup, const std::optional<NoiseFloor>& noise_floor) {
  const RunConfig& c = setup.config();
  NoiseRule noise;
  if (noise_floor) {
    require_same_experiment(*noise_floor, experiment_of(setup));
    noise = with_stored_floor(noise, *noise_floor);
  }
  const Schedule schedule = setup.learner(baseline_recipe(c), 0, 0).schedule;
  Protocol p =
      make_protocol({.name = c.training.name,
                     .model = c.model.preset.empty() ? setup.model().family : c.model.preset,
                     .baseline_recipe = baseline_recipe(c).name,
                     .candidate_recipe = candidate_recipe(c).name,
                     .parameters = param_count(setup.model()),
                     .tokens_per_step = c.tokens_per_step(),
                     .schedule = {.steps = c.training.steps,
                                  .warmup_steps = c.schedule.warmup_steps,
                                  .decay_start = schedule.decay_start(),
                                  .switch_steps = switch_steps(candidate_recipe(c), c.training.steps)},
                     .seed = static_cast<std::uint64_t>(c.training.seed),
                     .sr_seed = static_cast<std::uint64_t>(c.precision.sr_seed),
                     .pairs = static_cast<int>(c.protocol.pairs),
                     .aa_arm = c.protocol.aa_arm,
                     .limit = c.protocol.limit,
                     .noise = noise,
                     .alarms = c.telemetry.alarms});
  p.contract = setup.contract();
  p.contract["precision"] = maths_hash(c, true);
  if (const auto tasks = RunTasks::of(setup)) p.tasks = task_rule(*tasks, p, c.protocol.task_points);
  return p;
}

std::vector<FloorDifference> floor_differences(const RunSetup& setup, const NoiseFloor& floor) {
  return floor_differences(floor, experiment_of(setup));
}

Comparison run_comparison(const RunSetup& setup, Stream& stream, bool resume, const SignalGuard& signals,
                          const std::function<std::shared_ptr<ConsoleSink>(const ArmSpec&)>& make_console,
                          const std::optional<NoiseFloor>& noise_floor) {
  Comparison comparison{
      .directory = run_directory(setup.config()), .protocol = protocol_of(setup, noise_floor), .verdict = {}};
  freeze(comparison.protocol, comparison.directory, resume);
  write_file(comparison.directory / "run.toml", to_toml(setup.config()));
  Arms arms(setup, stream, comparison.protocol, comparison.directory, resume, signals);
  for (const ArmSpec& arm : comparison.protocol.arms) {
    if (arms.evidence.abort) break;
    if (!arms.run(arm, make_console(arm))) {
      comparison.signal = signals.received();
      return comparison;
    }
  }
  arms.evidence.frozen_hash =
      protocol_hash(protocol_from_text(read_file(comparison.directory / "protocol.json")));
  comparison.verdict = decide(comparison.protocol, arms.evidence);
  // An arm that ended early has not scored them.
  if (!comparison.verdict.abort)
    comparison.verdict.tasks = compare_tasks(comparison.protocol, comparison.directory);
  comparison.finished = true;
  write_file(comparison.directory / "verdict.json", verdict_to_json(comparison.verdict));
  store_noise_floor(setup, comparison, arms.evidence.pairs, noise_floor);
  return comparison;
}

}  // namespace nibble
