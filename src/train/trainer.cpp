// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>

#include "base/error.h"
#include "io/atomic_dir.h"
#include "telemetry/jsonl_sink.h"
#include "telemetry/tensorboard_sink.h"
#include "train/checkpoint.h"
#include "train/quant_monitor.h"
#include "train/run_log.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Remembers evaluations and alarms for the verdict.
class Recorder final : public Sink {
 public:
  explicit Recorder(RunResult& result) : result_(result) {}
  void on(const EvalEvent& e) override { result_.evaluations.push_back(e); }
  void on(const AlarmEvent& e) override { result_.alarms.push_back(e); }

 private:
  RunResult& result_;
};

View<const std::int32_t> view_of(const std::vector<TokenId>& ids) {
  static_assert(std::is_same_v<TokenId, std::int32_t>);
  return View<const std::int32_t>(ids.data(), static_cast<std::int64_t>(ids.size()));
}

/// One run while it runs.
class Run {
 public:
  Run(Learner& learner, const RunData& data, const RunPlan& plan, const std::shared_ptr<Sink>& console,
      const SignalGuard& signals)
      : learner_(learner),
        data_(data),
        plan_(plan),
        signals_(signals),
        checkpoints_(plan.directory / "checkpoints"),
        validation_(data.validation.batch(0, data.validation.count())),
        monitor_(learner.device(), plan.alarms, plan.telemetry) {
    std::filesystem::create_directories(checkpoints_);
    clean_temporary(checkpoints_, kCheckpointPrefix);
    if (plan.resume) restore();
    open_logs(console);
  }

  RunResult train(const std::function<bool(const EvalEvent&)>& stop) {
    const std::int64_t steps = plan_.until > 0 ? plan_.until : learner_.config().schedule.steps;
    last_finish_ = Clock::now();
    try {
      // A rule that stops a run counts evaluations in a row, also across a resume.
      for (const EvalEvent& e : result_.evaluations)
        if (stop && stop(e)) return finish(RunEnd::Stopped);
      if (!resumed_ && evaluates_at(learner_.steps_done())) evaluate();
      if (learner_.steps_done() == 0 && tasks_at(0)) evaluate_tasks();
      while (learner_.steps_begun() < steps) {
        if (signals_.received() != 0) {
          drain();
          return finish(RunEnd::Signal);
        }
        begin_step();
        const std::int64_t done = learner_.steps_begun();
        if (looks_at(done)) drain();
        if (evaluates_at(done)) {
          evaluate();
          if (stop && stop(result_.evaluations.back())) return finish(RunEnd::Stopped);
        }
        if (tasks_at(done)) evaluate_tasks();
        if (plan_.checkpoint_every > 0 && done % plan_.checkpoint_every == 0 && done < steps) save();
      }
      drain();
      return finish(RunEnd::Finished);
    } catch (const Error& e) {
      sinks_.sync();
      if (e.kind() != ErrorKind::NonFinite) throw;
      throw Error(ErrorKind::NonFinite,
                  fmt::format("{}\nThe last good checkpoint is {}.", e.what(),
                              result_.checkpoint.empty() ? "none: the run had not saved yet"
                                                         : result_.checkpoint.string()));
    }
  }

 private:
  void restore() {
    const LatestComplete latest = find_latest_complete(checkpoints_, kCheckpointPrefix);
    for (const std::string& why : latest.rejected) fmt::print(stderr, "nibble: skipping {}\n", why);
    if (!latest.directory) {
      check(latest.rejected.empty(),
            "{}: every checkpoint is damaged (see above), so there is nothing to resume from. Restore one "
            "from a backup, "
            "or run without --resume: what is there will be moved aside",
            checkpoints_.string());
      fmt::print(stderr, "nibble: {} holds no checkpoint yet; starting at step {}\n", checkpoints_.string(),
                 learner_.steps_done());
      return;
    }
    check_identity(read_checkpoint_state(*latest.directory), plan_.identity, *latest.directory);
    load_checkpoint(*latest.directory, learner_);
    result_.checkpoint = *latest.directory;
    resumed_ = true;
  }

  void open_logs(const std::shared_ptr<Sink>& console) {
    std::optional<std::int64_t> from;
    if (resumed_) {
      from = learner_.steps_done();
      recall(*from);
    }
    sinks_.add(std::make_shared<MetricsJsonl>(plan_.directory / "metrics.jsonl", from));
    sinks_.add(std::make_shared<TelemetryJsonl>(plan_.directory / "telemetry.jsonl", from, plan_.telemetry));
    if (plan_.tensorboard)
      sinks_.add(std::make_shared<TensorBoardSink>(plan_.directory / "tensorboard", from));
    sinks_.add(std::make_shared<Recorder>(result_));
    if (console) sinks_.add(console);
    sinks_.on(plan_.header);
    // The log of a resumed run has it from before; who watches it has not.
    if (from && console) announce_switches(*console);
    if (!from) announce_switches(sinks_);
  }

  /// Precision changes after the steps that are done. Said when the last of them is, before a checkpoint of
  /// this step: a run resumed from there has the line in what it keeps of the log, an earlier one says it
  /// anew.
  void announce_switches(Sink& to) const {
    const Recipe& recipe = learner_.config().recipe;
    for (std::size_t i = 0; i < recipe.switches.size(); ++i) {
      const RecipeSwitch& s = recipe.switches[i];
      if (s.from_step != learner_.steps_done()) continue;
      to.on(SwitchEvent{s.from_step, recipe_before_switch(recipe, i), s.to.name, describe(s.gemms)});
    }
  }

  /// What the steps before a resume said, from the logs: the verdict and the alarms' memory go on from there.
  void recall(std::int64_t last_step) {
    const auto is_past = [last_step](const auto& e) { return e.step <= last_step; };
    const RunLog log = read_run_log(plan_.directory / "metrics.jsonl");
    std::copy_if(log.evaluations.begin(), log.evaluations.end(), std::back_inserter(result_.evaluations),
                 is_past);
    std::copy_if(log.alarms.begin(), log.alarms.end(), std::back_inserter(result_.alarms), is_past);
    for (const QuantEvent& e : read_telemetry_log(plan_.directory / "telemetry.jsonl"))
      if (is_past(e)) monitor_.recall(e);
  }

  bool evaluates_at(std::int64_t step) const {
    return std::binary_search(plan_.eval_steps.begin(), plan_.eval_steps.end(), step);
  }

  bool tasks_at(std::int64_t step) const {
    return plan_.evaluate_tasks && std::binary_search(plan_.task_steps.begin(), plan_.task_steps.end(), step);
  }

  bool measures(std::int64_t step) const {
    return plan_.telemetry_every > 0 && (step == 0 || (step + 1) % plan_.telemetry_every == 0);
  }

  std::int64_t tokens_done() const {
    return learner_.steps_done() * learner_.config().batch * learner_.config().sequence;
  }

  /// Whether something is done after this many steps that needs them finished.
  bool looks_at(std::int64_t done) const {
    return evaluates_at(done) || tasks_at(done) ||
           (plan_.checkpoint_every > 0 && done % plan_.checkpoint_every == 0);
  }

  /// Begins a step and finishes the one before it: while a device computes, the host fetches the next batch.
  /// A device without a queue of its own is finished at once.
  void begin_step() {
    const std::int64_t step = learner_.steps_begun();
    const Batch batch = data_.order.batch(step, learner_.config().batch);
    learner_.begin(view_of(batch.ids), view_of(batch.targets), measures(step) ? &monitor_ : nullptr);
    hashes_.push_back(batch.hash);
    const bool queued = learner_.device().kind() == BackendKind::Cuda;
    while (learner_.in_flight() > (queued ? 1 : 0)) finish_step();
  }

  void drain() {
    while (learner_.in_flight() > 0) finish_step();
  }

  void finish_step() {
    const StepResult r = learner_.finish();
    const double seconds = seconds_since(last_finish_);
    last_finish_ = Clock::now();
    TrainEvent e;
    e.step = learner_.steps_done();
    e.tokens = tokens_done();
    e.loss = r.loss;
    e.lr = r.lr;
    e.grad_norm = r.grad_norm;
    e.tokens_per_s = static_cast<double>(learner_.config().batch * learner_.config().sequence) / seconds;
    e.step_ms = seconds * 1e3;
    e.batch_hash = hashes_.front();
    hashes_.pop_front();
    sinks_.on(e);
    if (measures(e.step - 1)) monitor_.finish_step(e.step, sinks_);
    announce_switches(sinks_);
  }

  void evaluate() {
    EvalEvent e;
    e.step = learner_.steps_done();
    e.tokens = tokens_done();
    e.loss = learner_.evaluate(view_of(validation_.ids), view_of(validation_.targets));
    e.eval_tokens = static_cast<std::int64_t>(validation_.ids.size());
    sinks_.on(e);
    last_finish_ = Clock::now();
  }

  void evaluate_tasks() {
    for (const TaskEvent& e : plan_.evaluate_tasks(learner_)) sinks_.on(e);
    last_finish_ = Clock::now();
  }

  void save() {
    const Clock::time_point start = Clock::now();
    sinks_.sync();
    const CheckpointState state{learner_.steps_done(), tokens_done(), plan_.identity};
    const auto eos = data_.tokenizer.eos_id();
    HfTokenIds ids;
    if (eos) ids.bos = ids.eos = *eos;
    result_.checkpoint = save_checkpoint(
        checkpoints_, learner_, state, ids,
        [&](const std::filesystem::path& model) { data_.tokenizer.save(model); }, plan_.checkpoint_keep);
    CheckpointEvent e;
    e.step = learner_.steps_done();
    e.path = result_.checkpoint.string();
    e.seconds = seconds_since(start);
    sinks_.on(e);
    last_finish_ = Clock::now();
  }

  RunResult finish(RunEnd end) {
    save();
    sinks_.sync();
    result_.end = end;
    result_.signal = end == RunEnd::Signal ? signals_.received() : 0;
    result_.steps = learner_.steps_done();
    return result_;
  }

  Learner& learner_;
  const RunData& data_;
  const RunPlan& plan_;
  const SignalGuard& signals_;
  std::filesystem::path checkpoints_;
  Batch validation_;
  QuantMonitor monitor_;
  bool resumed_ = false;                      ///< from a checkpoint of this directory
  std::deque<decltype(Batch::hash)> hashes_;  ///< of the steps in flight
  Clock::time_point last_finish_ = Clock::now();
  RunResult result_;
  Sinks sinks_;
};

}  // namespace

RunResult run_training(Learner& learner, const RunData& data, const RunPlan& plan,
                       const std::shared_ptr<Sink>& console, const SignalGuard& signals,
                       const std::function<bool(const EvalEvent&)>& stop) {
  return Run(learner, data, plan, console, signals).train(stop);
}

}  // namespace nibble
