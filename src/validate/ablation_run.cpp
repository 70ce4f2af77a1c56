// SPDX-License-Identifier: Apache-2.0
// Trains the arms of an ablation, skipping those that are finished.
#include <algorithm>

#include "base/error.h"
#include "io/file.h"
#include "train/checkpoint.h"
#include "train/run_log.h"
#include "validate/ablation.h"
#include "validate/arm_log.h"

namespace nibble {
namespace {

/// Writes the protocol, or makes sure that the one that is there is the same.
void freeze(const AblationPlan& plan, bool resume) {
  const std::filesystem::path path = plan.directory / "protocol.json";
  if (resume && std::filesystem::exists(path)) {
    const std::string frozen = protocol_hash(protocol_from_text(read_file(path)));
    check_usage(frozen == protocol_hash(plan.protocol),
                "{} belongs to another ablation or comparison ({}, this one is {}): configuration, arms and "
                "seeds must be those it was begun with. Restore them, or start anew under another "
                "training.name",
                path.string(), frozen, protocol_hash(plan.protocol));
    return;
  }
  write_file(path, canonical_text(plan.protocol));
}

class Runner {
 public:
  Runner(const AblationPlan& plan, Stream& stream, bool resume, const SignalGuard& signals)
      : plan_(plan),
        stream_(stream),
        resume_(resume),
        signals_(signals),
        hash_(protocol_hash(plan.protocol)) {}

  bool finished(const ArmSpec& spec) const {
    const std::filesystem::path directory = plan_.directory / spec.directory;
    const std::int64_t steps = plan_.protocol.steps;
    // The log is on disk before the last checkpoint appears, so the checkpoint is looked for first.
    if (!resume_ || !std::filesystem::exists(directory / "checkpoints" / checkpoint_name(steps)))
      return false;
    const RunLog log = read_run_log(directory / "metrics.jsonl");
    return log.header.protocol == hash_ && !log.evaluations.empty() && log.evaluations.back().step == steps;
  }

  /// Trains one arm. Returns false when a signal ended it.
  bool run(const ArmSpec& spec, const std::shared_ptr<ConsoleSink>& console) {
    const RunSetup setup(config_of(spec));
    const RunConfig& c = setup.config();
    const bool is_baseline = spec.name == kBaselineArm;
    Learner learner(stream_, setup.learner(is_baseline ? baseline_recipe(c) : candidate_recipe(c), spec.seed,
                                           spec.sr_seed));
    const SampleOrder order = setup.order(spec.seed);
    RunPlan plan = setup.plan(learner, stream_.kind());
    plan.directory = plan_.directory / spec.directory;
    plan.eval_steps = plan_.protocol.eval_steps;
    plan.eval_steps.insert(plan.eval_steps.begin(), 0);
    plan.alarms = plan_.protocol.alarms;
    plan.resume = resume_;
    plan.identity["arm"] = spec.directory;
    plan.identity["protocol"] = plan.header.protocol = hash_;
    plan.header.arm = spec.name;
    std::filesystem::create_directories(plan.directory);
    write_file(plan.directory / "run.toml", to_toml(c));
    if (console && !is_baseline) console->attach_baseline(losses_of(baseline_));
    try {
      const RunResult r =
          run_training(learner, {order, setup.validation(), setup.data().tokenizer}, plan, console, signals_);
      return r.end != RunEnd::Signal;
    } catch (const Error& e) {
      // An arm's own failure is a finding, not an accident; without its baseline there is none.
      if (e.kind() != ErrorKind::NonFinite || is_baseline) throw;
      curves_of(spec).broken = fmt::format("not finite after step {}{}", learner.steps_done(),
                                           spec.pair > 1 ? fmt::format(" of seed {}", spec.pair) : "");
      return true;
    }
  }

  /// What the arm's log says, once it has ended.
  void collect(const ArmSpec& spec) {
    const RunLog log = read_run_log(plan_.directory / spec.directory / "metrics.jsonl");
    if (spec.name == kBaselineArm)
      baseline_ = log;
    else
      require_paired(baseline_, "the baseline", log, spec.directory);
    ArmCurves& c = curves_of(spec);
    c.seeds.push_back(points(log.evaluations));
    for (const AlarmEvent& a : log.alarms)
      if (a.severity == Severity::Fault) c.faults.push_back(a.text);
  }

  const std::vector<ArmCurves>& curves() const { return curves_; }

 private:
  RunConfig config_of(const ArmSpec& spec) const {
    const std::string name = spec.name == kAaArm ? kFullArm : spec.name;
    const auto arm = std::find_if(plan_.arms.begin(), plan_.arms.end(),
                                  [&](const AblationArm& a) { return a.name == name; });
    check(arm != plan_.arms.end(), "the protocol names an arm {} that is not planned", spec.name);
    RunConfig c = arm->config;
    c.training.seed = static_cast<std::int64_t>(spec.seed);
    c.precision.sr_seed = static_cast<std::int64_t>(spec.sr_seed);
    return c;
  }

  ArmCurves& curves_of(const ArmSpec& spec) {
    for (ArmCurves& c : curves_)
      if (c.name == spec.name) return c;
    curves_.push_back({.name = spec.name, .seeds = {}, .broken = {}, .faults = {}});
    return curves_.back();
  }

  const AblationPlan& plan_;
  Stream& stream_;
  bool resume_;
  const SignalGuard& signals_;
  std::string hash_;
  RunLog baseline_;  ///< of the seed at hand
  std::vector<ArmCurves> curves_;
};

}  // namespace

AblationRun run_ablation(const AblationPlan& plan, Stream& stream, bool resume, const SignalGuard& signals,
                         const std::function<std::shared_ptr<ConsoleSink>(const ArmSpec&)>& make_console,
                         const std::function<void(const ArmSpec&)>& on_skip) {
  AblationRun out;
  freeze(plan, resume);
  write_file(plan.directory / "run.toml", to_toml(plan.config));
  Runner runner(plan, stream, resume, signals);
  for (const ArmSpec& spec : plan.protocol.arms) {
    if (runner.finished(spec)) {
      if (on_skip) on_skip(spec);
    } else if (!runner.run(spec, make_console(spec))) {
      out.signal = signals.received();
      return out;
    }
    runner.collect(spec);
  }
  out.result = judge_ablation(plan, runner.curves());
  out.finished = true;
  write_json(plan.directory / "ablation.json", ablation_json(out.result));
  return out;
}

}  // namespace nibble
