// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "train/setup.h"

namespace nibble {

/// The tasks that a run evaluates while it trains, read and encoded for its tokenizer once. They are scored
/// in the forward pass of the validation loss (`bf16`), whatever the arm trains in.
class RunTasks {
 public:
  /// Null when the configuration names no tasks (eval.tasks). Throws Error{Usage} for files that cannot be
  /// used.
  static std::shared_ptr<const RunTasks> of(const RunSetup& setup);

  const std::vector<Task>& tasks() const { return tasks_; }
  std::string hash() const { return tasks_hash(tasks_); }
  std::vector<std::string> names() const;

  /// Has the run evaluate the tasks after these steps: an event a task in its logs, and the results example
  /// by example in DIRECTORY/eval (results.h). `self` lives as long as the plan.
  static void attach(const std::shared_ptr<const RunTasks>& self, std::vector<std::int64_t> steps,
                     RunPlan& plan);

 private:
  RunTasks(const RunSetup& setup, std::vector<Task> tasks);

  std::vector<Task> tasks_;
  TaskEncoder encoder_;
  Batching batching_;
};

/// Steps of `nibble train`: every eval.every_steps, and the last.
std::vector<std::int64_t> task_steps(std::int64_t steps, std::int64_t every);

}  // namespace nibble
