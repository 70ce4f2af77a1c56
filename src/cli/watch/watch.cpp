// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/watch/http_server.h"
#include "cli/watch/run_tail.h"
#include "cli/watch/site.h"
#include "cli/watch/terminal_chart.h"
#include "train/signals.h"

namespace nibble {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(500);

struct Options {
  std::vector<std::string> runs;
  std::string listen = "127.0.0.1";
  int port = 6420;
  bool terminal = false, once = false;
};

/// The frame over the last one, each line to its end, and nothing below: no flicker.
void print_over(const std::string& frame) {
  std::string out = "\033[H";
  for (const char c : frame) out += c == '\n' ? std::string("\033[K\n") : std::string(1, c);
  fmt::print("{}\033[J", out);
  std::fflush(stdout);
}

ExitCode run_terminal(WatchedRuns& runs, bool once) {
  const SignalGuard signals;
  if (!once) fmt::print("\033[2J");
  while (true) {
    runs.poll();
    const std::string frame = terminal_frame(runs.copy(), terminal_style());
    if (once) return fmt::print("{}", frame), 0;
    print_over(frame);
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(kPoll);
      if (signals.received() != 0) return 0;
    }
  }
}

ExitCode run_server(WatchedRuns& runs, const Options& o) {
  const SignalGuard signals;
  const HttpServer server(o.listen, o.port, watch_site(runs));
  const bool six = server.address().find(':') != std::string::npos;
  fmt::print("http://{}{}{}:{}/  (Ctrl-C ends it)\n", six ? "[" : "", server.address(), six ? "]" : "",
             server.port());
  if (server.address() != "127.0.0.1" && server.address() != "::1")
    fmt::print("everybody who reaches this machine at that address can read these runs\n");
  std::fflush(stdout);
  while (signals.received() == 0) {
    runs.poll();
    std::this_thread::sleep_for(kPoll);
  }
  return 0;
}

ExitCode run(const Options& o) {
  std::vector<std::filesystem::path> folders(o.runs.begin(), o.runs.end());
  for (const auto& folder : folders)
    check_usage(!std::filesystem::exists(folder) || std::filesystem::is_directory(folder),
                "{} is a file; name the folder of a run", folder.string());
  WatchedRuns runs(folders);
  return o.terminal ? run_terminal(runs, o.once) : run_server(runs, o);
}

}  // namespace

Verb add_watch(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("RUN", o->runs,
                 "Folders runs/NAME, of a run or a comparison; one that does not exist yet is waited for")
      ->required();
  app.add_flag("--terminal", o->terminal, "Draw in this terminal instead");
  app.add_flag("--once", o->once, "With --terminal: draw once, then end")->needs("--terminal");
  app.add_option("--listen", o->listen,
                 "Address to serve the page at (default 127.0.0.1: this machine alone can read it)");
  app.add_option("--port", o->port, "Port to serve the page at (default 6420); 0: a free one")
      ->check(CLI::Range(0, 65535));
  app.footer(
      "Prints the address to open in a browser and runs until Ctrl-C. Reads metrics.jsonl as it grows; "
      "nothing "
      "of the run\nis touched, and the page loads nothing from elsewhere. More: docs/howto/watch.md");
  return [o] { return run(*o); };
}

}  // namespace nibble
