// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/alarms.h"

namespace nibble {

struct WatchRow {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens_per_s = 0, step_ms = 0;
};

struct WatchEvaluation {
  std::int64_t step = 0;
  double loss = 0;
};

/// What a page knows of one run.
struct WatchedRun {
  std::string name, recipe, backend;
  std::int64_t steps = 0, parameters = 0, tokens_per_step = 0;
  std::vector<WatchRow> rows;  ///< ascending in step
  std::vector<WatchEvaluation> evaluations;
  std::vector<std::string> alarms;  ///< "fault, step 12: ...", a line a subject: alarm_subject
  std::int64_t alarm_events = 0;    ///< behind those lines
  int generation = 0;               ///< counts up when what was known is no longer true
  std::int64_t passed_over = 0;     ///< lines that are no JSON object with a type
};

/// Follows a metrics.jsonl that grows. A half-written last line waits for its end; a file that was cut and
/// continued (a resumed run) or replaced is read anew.
class RunTail {
 public:
  RunTail(std::string name, std::filesystem::path log);

  /// Reads what is new. A missing or unreadable file holds nothing, for now.
  void poll();
  const WatchedRun& run() const { return run_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool still_the_same(std::int64_t size) const;
  void forget();
  void take(std::string_view line);
  void put_alarm(const std::string& severity, AlarmEvent alarm);

  std::filesystem::path path_;
  WatchedRun run_;
  std::int64_t read_ = 0;  ///< bytes of whole lines taken
  std::string last_line_;  ///< the last of them, to know the file again
  /// Alarms of one subject and their place in run_.alarms.
  std::map<std::string, std::pair<AlarmGroup, std::size_t>> alarms_;
};

/// The runs under some folders: an arm each where a folder is a comparison. New arms are found as they
/// appear. Thread-safe.
class WatchedRuns {
 public:
  explicit WatchedRuns(std::vector<std::filesystem::path> folders);

  void poll();
  std::vector<WatchedRun> copy() const;
  /// Rows and evaluations beyond what a page has of every run, as JSON; all of them, thinned to `most` rows a
  /// run, when it has none. Moves `seen`. Empty when there is nothing new.
  struct Seen {
    int generation = -1;
    std::size_t rows = 0, evaluations = 0;
    std::int64_t alarm_events = 0;
  };
  std::string news(std::vector<Seen>& seen, std::size_t most) const;

 private:
  std::vector<std::filesystem::path> folders_;
  mutable std::mutex mutex_;
  std::vector<RunTail> tails_;
};

}  // namespace nibble
