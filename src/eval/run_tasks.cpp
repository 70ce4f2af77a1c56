// SPDX-License-Identifier: Apache-2.0
#include "eval/run_tasks.h"

#include "base/error.h"
#include "eval/results.h"

namespace nibble {

std::shared_ptr<const RunTasks> RunTasks::of(const RunSetup& setup) {
  const EvalSection& eval = setup.config().eval;
  if (eval.tasks.empty()) return nullptr;
  return std::shared_ptr<const RunTasks>(new RunTasks(setup, read_tasks(eval.tasks, eval.limit)));
}

RunTasks::RunTasks(const RunSetup& setup, std::vector<Task> tasks)
    : tasks_(std::move(tasks)),
      encoder_(setup.data().tokenizer),
      batching_{.max_length = setup.model().max_seq,
                .tokens = setup.config().micro_batch() * setup.config().training.sequence} {
  require_scorable(tasks_, encoder_, batching_.max_length);
}

std::vector<std::string> RunTasks::names() const {
  std::vector<std::string> out;
  for (const Task& task : tasks_) out.push_back(task.name);
  return out;
}

void RunTasks::attach(const std::shared_ptr<const RunTasks>& self, std::vector<std::int64_t> steps,
                      RunPlan& plan) {
  if (self == nullptr) return;
  plan.task_steps = std::move(steps);
  plan.evaluate_tasks = [self, directory = plan.directory](Learner& learner) {
    const auto forward = [&](View<const std::int32_t> ids, View<const std::int32_t> targets,
                             std::int64_t length) { return learner.score(ids, targets, length); };
    const std::vector<TaskResult> results = evaluate(self->tasks_, self->encoder_, forward, self->batching_);
    const std::int64_t step = learner.steps_done();
    store_results(directory, step, results);
    return task_events(results, step, step * learner.config().batch * learner.config().sequence);
  };
}

std::vector<std::int64_t> task_steps(std::int64_t steps, std::int64_t every) {
  std::vector<std::int64_t> out;
  for (std::int64_t s = every; every > 0 && s < steps; s += every) out.push_back(s);
  out.push_back(steps);
  return out;
}

}  // namespace nibble
