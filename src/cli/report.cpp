// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <fmt/format.h>

#include "cli/cli.h"
#include "report/metrics_csv.h"

namespace nibble {
namespace {

struct Options {
  std::string run, csv;
  bool markdown = false;
};

ExitCode run(const Options& o) {
  if (!o.csv.empty()) {
    write_metrics_csv(o.run, o.csv);
    fmt::print("metrics: {}\n", o.csv);
    return 0;
  }
  const ReportData data = read_run(o.run);
  const std::filesystem::path html = std::filesystem::path(o.run) / "report.html";
  write_report(html, data);
  if (o.markdown)
    fmt::print("{}", summary_markdown(data));
  else
    fmt::print("{}report: {}\n", summary_text(data), html.string());
  return 0;
}

}  // namespace

Verb add_report(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("RUN", o->run,
                 "Folder of a comparison (runs/NAME of `nibble validate`); with --csv of any run")
      ->required();
  app.add_flag("--markdown", o->markdown, "Print the summary as Markdown, for a merge request or a chat");
  app.add_option("--csv", o->csv, "Write the logs of all arms to this file as one table, and no report")
      ->excludes("--markdown");
  app.footer(
      "Reads protocol.json, verdict.json and the arms' logs; writes RUN/report.html, a page that needs "
      "nothing "
      "else, and says so\non top when something was changed after the run. The verdict is read, not judged "
      "again. "
      "Exit code: 0, whatever the verdict.");
  return [o] { return run(*o); };
}

}  // namespace nibble
