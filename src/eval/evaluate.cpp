// SPDX-License-Identifier: Apache-2.0
#include "eval/evaluate.h"

#include <cmath>

#include "base/error.h"

namespace nibble {
namespace {

constexpr double kLn2 = 0.693147180559945309417;

Metric metric(const char* name, bool higher_is_better, bool exponential = false) {
  return {.name = name,
          .higher_is_better = higher_is_better,
          .exponential = exponential,
          .sums = {},
          .weights = {}};
}

void add(Metric& m, double sum) { m.sums.push_back(sum); }
void add(Metric& m, double sum, double weight) { m.sums.push_back(sum), m.weights.push_back(weight); }

/// The first choice whose log-likelihood, over what divides it, is the largest.
template <class Length>
std::size_t best(const Example& e, const std::vector<Score>& scores, Length length) {
  std::size_t winner = 0;
  const auto value = [&](std::size_t i) {
    return scores[i].log_likelihood / static_cast<double>(length(e.choices[i]));
  };
  for (std::size_t i = 1; i < scores.size(); ++i)
    if (value(i) > value(winner)) winner = i;
  return winner;
}

std::int64_t bytes(const std::string& text) { return static_cast<std::int64_t>(text.size()); }

std::vector<Metric> choice_metrics(const Task& task, const std::vector<ExampleResult>& results) {
  std::vector<Metric> m = {metric("acc", true), metric("acc_norm", true), metric("acc_bytes", true),
                           metric("gold_bits_per_byte", false)};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Example& e = task.examples[i];
    const std::vector<Score>& s = results[i].scores;
    const auto right = [&](auto length) { return best(e, s, length) == e.gold ? 1.0 : 0.0; };
    add(m[0], right([](const std::string&) { return 1; }));
    add(m[1], right([](const std::string& c) { return characters(c); }));
    add(m[2], right(bytes));
    add(m[3], -s[e.gold].log_likelihood / kLn2, static_cast<double>(bytes(e.choices[e.gold])));
  }
  if (task.kind == TaskKind::MinimalPairs) m.erase(m.begin() + 1, m.begin() + 3);
  return m;
}

std::vector<Metric> word_metrics(const Task& task, const std::vector<ExampleResult>& results) {
  std::vector<Metric> m = {metric("acc", true), metric("perplexity", false, true),
                           metric("gold_bits_per_byte", false)};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Score& s = results[i].scores.front();
    add(m[0], s.greedy ? 1.0 : 0.0);
    add(m[1], -s.log_likelihood);
    add(m[2], -s.log_likelihood / kLn2, static_cast<double>(bytes(task.examples[i].choices.front())));
  }
  return m;
}

std::vector<Metric> text_metrics(const Task& task, const std::vector<ExampleResult>& results) {
  std::vector<Metric> m = {metric("bits_per_byte", false), metric("byte_perplexity", false, true),
                           metric("word_perplexity", false, true)};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string& text = task.examples[i].choices.front();
    const double nats = -results[i].scores.front().log_likelihood;
    add(m[0], nats / kLn2, static_cast<double>(bytes(text)));
    add(m[1], nats, static_cast<double>(bytes(text)));
    add(m[2], nats, static_cast<double>(words(text)));
  }
  return m;
}

std::vector<Metric> metrics_of(const Task& task, const std::vector<ExampleResult>& results) {
  if (task.kind == TaskKind::LastWord) return word_metrics(task, results);
  return task.kind == TaskKind::Text ? text_metrics(task, results) : choice_metrics(task, results);
}

/// The requests of a task's examples, one after the other: a text has as many as it has pieces.
struct Requests {
  std::vector<Request> all;
  std::vector<std::vector<std::size_t>> pieces;  ///< an example's: of each score, how many requests it sums
};

Requests requests_of(const Task& task, const TaskEncoder& encoder, std::int64_t max_length,
                     std::vector<ExampleResult>& results) {
  Requests out;
  for (std::size_t i = 0; i < task.examples.size(); ++i) {
    const Example& e = task.examples[i];
    ExampleResult& result = results.emplace_back();
    std::vector<std::size_t>& pieces = out.pieces.emplace_back();
    try {
      for (const std::string& choice : e.choices) {
        if (task.kind == TaskKind::Text) {
          const std::vector<Request> windows = text_requests(encoder, choice, max_length);
          out.all.insert(out.all.end(), windows.begin(), windows.end());
          pieces.push_back(windows.size());
          continue;
        }
        result.contexts.push_back(task.shots_text + e.context);
        result.continuations.push_back(task.delimiter + choice);
        out.all.push_back(
            pair_request(encoder, result.contexts.back(), result.continuations.back(), max_length));
        pieces.push_back(1);
      }
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("task {}, example {}: {}", task.name, i, error.what()));
    }
  }
  return out;
}

TaskResult evaluate_task(const Task& task, const TaskEncoder& encoder, const Forward& forward,
                         const Batching& batching) {
  TaskResult result{.task = task.name,
                    .kind = task.kind,
                    .shots = task.shots,
                    .examples_all = task.examples_all,
                    .metrics = {},
                    .examples = {}};
  const Requests requests = requests_of(task, encoder, batching.max_length, result.examples);
  const std::vector<Score> scores = score(requests.all, forward, batching);
  std::size_t next = 0;
  for (std::size_t i = 0; i < result.examples.size(); ++i) {
    for (const std::size_t pieces : requests.pieces[i]) {
      Score sum{0, true};
      for (std::size_t k = 0; k < pieces; ++k, ++next) {
        sum.log_likelihood += scores[next].log_likelihood;
        sum.greedy = sum.greedy && scores[next].greedy;
      }
      result.examples[i].scores.push_back(sum);
    }
  }
  result.metrics = metrics_of(task, result.examples);
  return result;
}

}  // namespace

std::vector<TaskResult> evaluate(const std::vector<Task>& tasks, const TaskEncoder& encoder,
                                 const Forward& forward, const Batching& batching) {
  std::vector<TaskResult> out;
  for (const Task& task : tasks) {
    try {
      out.push_back(evaluate_task(task, encoder, forward, batching));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::NonFinite) throw;
      throw Error(e.kind(), fmt::format("task {}: {}", task.name, e.what()));
    }
  }
  return out;
}

void require_scorable(const std::vector<Task>& tasks, const TaskEncoder& encoder, std::int64_t max_length) {
  for (const Task& task : tasks) {
    std::vector<ExampleResult> unused;
    requests_of(task, encoder, max_length, unused);
  }
}

}  // namespace nibble
