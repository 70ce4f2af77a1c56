// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "cli/cli.h"
#include "report/long_run.h"
#include "report/report.h"

/// `nibble bench --report`: how long the report of a long run takes and how large it is.
namespace nibble {
namespace {

constexpr double kMostSeconds = 10, kMostBytes = 15e6;

struct Options {
  bool report = false, keep = false;
  LongRun run;
};

std::uintmax_t bytes_below(const std::filesystem::path& folder) {
  std::uintmax_t sum = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) sum += entry.file_size();
  return sum;
}

ExitCode run(const Options& o) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("nibble_long_run_{}", ::getpid());
  write_long_run(folder, o.run);
  const double logs = static_cast<double>(bytes_below(folder));
  fmt::print("invented run: {} steps, {} layers measured every {} steps, {:.0f} MB of logs\n", o.run.steps,
             o.run.layers, o.run.every, logs * 1e-6);
  const auto start = std::chrono::steady_clock::now();
  write_report(folder / "report.html", read_run(folder));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto size = static_cast<double>(std::filesystem::file_size(folder / "report.html"));
  fmt::print("report: {:.2f} s, {:.2f} MB (aim: below {:.0f} s and {:.0f} MB)\n", seconds, size * 1e-6,
             kMostSeconds, kMostBytes * 1e-6);
  if (o.keep)
    fmt::print("kept in {}\n", folder.string());
  else
    std::filesystem::remove_all(folder);
  return seconds < kMostSeconds && size < kMostBytes ? 0 : 1;
}

}  // namespace

Verb with_report_bench(CLI::App& app, Verb otherwise) {
  auto o = std::make_shared<Options>();
  app.add_flag("--report", o->report,
               "Instead: time and size of the report of a long run of invented numbers");
  app.add_option("--report-steps", o->run.steps, "With --report: steps of the run")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--report-layers", o->run.layers, "With --report: quantised linears")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--report-every", o->run.every, "With --report: steps between measurements")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--report-keep", o->keep, "With --report: leave the run's folder there");
  return [o, otherwise = std::move(otherwise)] { return o->report ? run(*o) : otherwise(); };
}

}  // namespace nibble
