// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/cli.h"
#include "cli/selftest/machine.h"
#include "cli/selftest/selftest.h"
#include "io/json.h"

namespace nibble {
namespace {

struct Options {
  MachineOptions machine;
  std::string fault;
  bool json = false;
};

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

void print_machine(const Machine& m, const Stream& stream, int threads) {
  fmt::print("nibble {} on {}\n", m.version, m.cpu);
  fmt::print("  threads       {} of {} hardware threads\n", threads, m.hardware_threads);
  fmt::print("  instructions  {}; BF16 products: {}\n", m.simd,
             m.native_bf16 ? "native" : "FP32 emulation (the same results to the stated bound, slower)");
  fmt::print("  memory        {:.1f} GiB, {:.1f} GiB available\n", static_cast<double>(m.memory) / kGiB,
             static_cast<double>(m.available) / kGiB);
  fmt::print("  oneDNN        {}\n", m.onednn);
  const bool cuda = std::find(m.backends.begin(), m.backends.end(), "cuda") != m.backends.end();
  fmt::print("  backends      {}{}; checked here: {}\n", fmt::join(m.backends, ", "),
             cuda ? "" : " (cuda: not in this build)", name_of(stream.kind()));
}

void print_result(const SelfTestResult& r) {
  fmt::print("  {:<20} {}  {:>8.1f} ms  {}\n", r.name, r.passed ? "pass" : "FAIL", 1000 * r.seconds,
             r.detail);
  if (!r.passed) fmt::print("  {:<20} what to do: {}\n", "", r.remedy);
}

Json to_json(const Machine& m, const Stream& stream, int threads, const std::vector<SelfTestResult>& results,
             bool passed) {
  Json gemms = Json::array(), tests = Json::array();
  for (const GemmKind& g : gemm_kinds(stream.kind(), m))
    gemms.push_back({{"kind", g.name}, {"how", g.how}, {"detail", g.detail}});
  for (const SelfTestResult& r : results)
    tests.push_back({{"name", r.name},
                     {"passed", r.passed},
                     {"seconds", r.seconds},
                     {"detail", r.detail},
                     {"remedy", r.remedy}});
  return {{"version", m.version},
          {"cpu", m.cpu},
          {"threads", threads},
          {"hardware_threads", m.hardware_threads},
          {"simd", m.simd},
          {"native_bf16", m.native_bf16},
          {"memory_bytes", m.memory},
          {"available_bytes", m.available},
          {"onednn", m.onednn},
          {"backends", m.backends},
          {"backend", std::string(name_of(stream.kind()))},
          {"gemm", gemms},
          {"self_tests", tests},
          {"passed", passed}};
}

ExitCode run(const Options& o) {
  Workplace here(o.machine);
  Stream& stream = here.stream;
  const int threads = stream.pool().threads();
  const Machine m = describe_machine();
  if (!o.json) {
    print_machine(m, stream, threads);
    fmt::print("products\n");
    for (const GemmKind& g : gemm_kinds(stream.kind(), m))
      fmt::print("  {:<6} {:<15} {}\n", g.name, g.how, g.detail);
    fmt::print("self-tests\n");
  }
  const std::vector<SelfTestResult> results = run_self_tests(stream, o.fault);
  std::vector<std::string> failed;
  for (const SelfTestResult& r : results) {
    if (!o.json) print_result(r);
    if (!r.passed) failed.push_back(r.name);
  }
  if (o.json)
    fmt::print("{}", dump_json(to_json(m, stream, threads, results, failed.empty())));
  else if (failed.empty())
    fmt::print("all {} self-tests pass\n", results.size());
  if (failed.empty()) return 0;
  fmt::print(stderr, "nibble: {} of {} self-tests failed: {}\n", failed.size(), results.size(),
             fmt::join(failed, ", "));
  return 1;
}

}  // namespace

Verb add_doctor(CLI::App& app) {
  auto o = std::make_shared<Options>();
  add_machine_options(app, o->machine);
  app.add_flag("--json", o->json, "Print everything as JSON");
  app.add_option("--inject-fault", o->fault,
                 "Falsify what the self-test of this name observes, to see that a failure is reported");
  app.footer(
      "native: the processor multiplies these numbers itself. emulated-exact: operands are converted "
      "without\n"
      "rounding to a type that it multiplies, so that only the order of summation differs from hardware "
      "support.\n"
      "Exit codes: 0 every self-test passed; 1 one failed, named with what to do; 2 bad usage.");
  return [o] { return run(*o); };
}

}  // namespace nibble
