// SPDX-License-Identifier: Apache-2.0
#include "report/task_table.h"

#include <fmt/format.h>

#include "report/svg.h"

namespace nibble {
namespace {

bool excludes_zero(const TaskComparison& t) { return t.ci95[0] > 0 || t.ci95[1] < 0; }

const char* reading(const TaskComparison& t) {
  if (t.difference == 0 && t.ci95[0] == 0 && t.ci95[1] == 0) return "equal";
  if (!excludes_zero(t)) return "not told apart";
  return (t.difference > 0) == t.higher_is_better ? "candidate better" : "candidate worse";
}

std::string row(const TaskComparison& t, bool first) {
  return fmt::format(
      "<tr><td class='mono'>{}</td><td>{}</td><td class='n'>{}</td><td class='n'>{:.4f}</td><td "
      "class='n'>{:.4f}</td><td class='n'>{:+.4f}</td><td class='n'>{:+.4f} to {:+.4f}</td><td>{}</td></tr>",
      first ? escaped(t.task) : "", escaped(t.metric), t.examples, t.baseline, t.candidate, t.difference,
      t.ci95[0], t.ci95[1], reading(t));
}

}  // namespace

std::string task_section(const ReportData& d) {
  const std::vector<TaskComparison>& tasks = d.verdict.tasks;
  if (tasks.empty()) return "";
  std::string rows;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    rows += row(tasks[i], i == 0 || tasks[i].task != tasks[i - 1].task);
  const std::string note = fmt::format(
      "Both arms in the same bf16 forward, mean of the last {} evaluation{}. The interval resamples "
      "questions "
      "({} times, the same ones for both arms); it says nothing about other seeds, and of {} intervals at 95 "
      "% "
      "about one in twenty excludes zero by chance. The validation loss decides; these inform.",
      d.protocol.tasks.steps.size(), d.protocol.tasks.steps.size() == 1 ? "" : "s",
      d.protocol.tasks.resamples, tasks.size());
  return "<section><h2>Tasks</h2><p class='note'>" + note +
         "</p><div class='scroll'><table><tr><th>task</th><th>metric</th><th class='n'>n</th><th "
         "class='n'>baseline</th><th class='n'>candidate</th><th class='n'>difference</th><th class='n'>95 % "
         "interval</th><th>reading</th></tr>" +
         rows + "</table></div></section>\n";
}

}  // namespace nibble
