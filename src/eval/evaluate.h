// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "eval/metric.h"
#include "eval/score.h"
#include "eval/task.h"

namespace nibble {

/// What a model said to one example: a score a choice, or one for a text.
struct ExampleResult {
  std::vector<std::string> contexts, continuations;  ///< as they were put together
  std::vector<Score> scores;
};

struct TaskResult {
  std::string task;
  TaskKind kind = TaskKind::MultipleChoice;
  int shots = 0;
  std::int64_t examples_all = 0;  ///< in the file; metrics have those that were scored
  std::vector<Metric> metrics;    ///< the first one is the task's own
  std::vector<ExampleResult> examples;
};

/// Scores every example and makes the metrics of its kind ([LMEVAL]; LL is the log-likelihood of delimiter +
/// choice after the context):
///   multiple_choice  acc: the gold choice has the largest LL, the first of equal ones;
///                    acc_norm: of LL / characters; acc_bytes: of LL / UTF-8 bytes (choice without delimiter)
///   minimal_pairs    acc of the good sentence, each after the prefix token
///   last_word        acc: every token of the word is the likeliest; perplexity: exp(-mean LL)
///   text             bits_per_byte, byte_perplexity, word_perplexity over rolling windows
/// and, of all but text, gold_bits_per_byte: -LL / ln 2 of the right answers over their bytes, a measure that
/// moves before an accuracy does. Throws Error{Usage} naming task and example for one that cannot be scored.
std::vector<TaskResult> evaluate(const std::vector<Task>& tasks, const TaskEncoder& encoder,
                                 const Forward& forward, const Batching& batching);

/// Encodes every example as evaluate() will, and throws what that would throw: before a run that would only
/// find out at its end.
void require_scorable(const std::vector<Task>& tasks, const TaskEncoder& encoder, std::int64_t max_length);

}  // namespace nibble
