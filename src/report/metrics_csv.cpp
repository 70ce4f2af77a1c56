// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_csv.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "io/file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 2;  // pair_02/baseline

/// Baseline first, then its candidates, as everywhere else.
int rank(const std::string& name) {
  const char* known[] = {"baseline", "branch", "candidate", "candidate_aa"};
  for (int i = 0; i < 4; ++i)
    if (name == known[i]) return i;
  return 4;
}

/// Seventeen digits, so that the table has the bits of the log; words where it is not finite.
std::string cell(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  return fmt::format("{:.17g}", v);
}

}  // namespace

std::vector<std::pair<std::string, fs::path>> arms_below(const fs::path& run) {
  if (fs::exists(run / "metrics.jsonl")) return {{"", run}};
  std::vector<std::pair<std::string, fs::path>> out;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(run, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (!it->is_directory()) continue;
    if (it.depth() + 1 >= kDeepest || it->path().filename() == "checkpoints") it.disable_recursion_pending();
    if (fs::exists(it->path() / "metrics.jsonl"))
      out.emplace_back(it->path().lexically_relative(run).string(), it->path());
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::pair(rank(a.first), a.first) < std::pair(rank(b.first), b.first);
  });
  return out;
}

std::string metrics_csv(const std::vector<std::pair<std::string, RunLog>>& arms) {
  std::string text = "arm,step,tokens,loss,lr,grad_norm,tokens_per_s,step_ms,val_loss\n";
  for (const auto& [name, log] : arms) {
    std::map<std::int64_t, const EvalEvent*> evaluations;
    for (const EvalEvent& e : log.evaluations) evaluations[e.step] = &e;
    if (const auto start = evaluations.find(0); start != evaluations.end())
      text += fmt::format("{},0,0,,,,,,{}\n", name, cell(start->second->loss));
    for (const TrainEvent& e : log.train) {
      const auto it = evaluations.find(e.step);
      text += fmt::format("{},{},{},{},{},{},{},{},{}\n", name, e.step, e.tokens, cell(e.loss), cell(e.lr),
                          cell(e.grad_norm), cell(e.tokens_per_s), cell(e.step_ms),
                          it == evaluations.end() ? "" : cell(it->second->loss));
    }
  }
  return text;
}

void write_metrics_csv(const fs::path& run, const fs::path& file) {
  std::vector<std::pair<std::string, RunLog>> logs;
  for (const auto& [name, folder] : arms_below(run))
    logs.emplace_back(name, read_run_log(folder / "metrics.jsonl"));
  check_usage(!logs.empty(), "{} holds no metrics.jsonl, nor do the folders below it; name a run: runs/NAME",
              run.string());
  write_file(file, metrics_csv(logs));
}

}  // namespace nibble
