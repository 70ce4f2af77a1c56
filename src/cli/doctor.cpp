// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/selftest/gpu.h"
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

/// What one call of the verb found.
struct Findings {
  Machine machine;
  BackendKind backend = BackendKind::Cpu;
  int threads = 0;
  std::optional<Gpu> gpu;  ///< with backend cuda
  std::vector<GemmKind> products;
  std::vector<SelfTestResult> tests;
  std::optional<GpuRates> rates;  ///< of a card that passes
  std::string no_rates;           ///< why a card that passes has none

  std::vector<std::string> failed() const {
    std::vector<std::string> names;
    for (const SelfTestResult& r : tests)
      if (!r.passed) names.push_back(r.name);
    return names;
  }
};

void print_machine(const Findings& f) {
  const Machine& m = f.machine;
  fmt::print("nibble {} on {}\n", m.version, f.gpu ? f.gpu->name : m.cpu);
  if (f.gpu) fmt::print("  processor     {}\n", m.cpu);
  fmt::print("  threads       {} of {} hardware threads\n", f.threads, m.hardware_threads);
  fmt::print("  instructions  {}; BF16 products: {}\n", m.simd,
             m.native_bf16 ? "native" : "FP32 emulation (the same results to the stated bound, slower)");
  fmt::print("  memory        {:.1f} GiB, {:.1f} GiB available\n", static_cast<double>(m.memory) / kGiB,
             static_cast<double>(m.available) / kGiB);
  fmt::print("  oneDNN        {}\n", m.onednn);
  const bool cuda = std::find(m.backends.begin(), m.backends.end(), "cuda") != m.backends.end();
  fmt::print("  backends      {}{}; checked here: {}\n", fmt::join(m.backends, ", "),
             cuda ? "" : " (cuda: not in this build)", name_of(f.backend));
}

void print_gpu(const Gpu& g) {
  fmt::print("card            {}\n", g.name);
  fmt::print("  capability    {}, {} multiprocessors\n", g.capability(), g.multiprocessors);
  fmt::print("  memory        {:.1f} GiB, {:.1f} GiB available\n", static_cast<double>(g.memory) / kGiB,
             static_cast<double>(g.available) / kGiB);
  fmt::print("  driver        {}, runs CUDA up to {}; this binary has CUDA {}\n",
             g.driver.empty() ? "unknown" : g.driver, g.driver_cuda, g.runtime_cuda);
  fmt::print("  products      cuBLASLt {}\n", g.cublaslt);
  fmt::print("  attention     {}\n", g.attention);
}

void print_rates(const Findings& f) {
  if (f.rates)
    fmt::print("rates           copy {:.2f} TB/s read and written, BF16 product {:.0f} TFLOP/s{}\n",
               f.rates->copy_bytes_per_s * 1e-12, f.rates->bf16_flops_per_s * 1e-12,
               f.rates->fp8_flops_per_s > 0
                   ? fmt::format(", FP8 product {:.0f} TFLOP/s", f.rates->fp8_flops_per_s * 1e-12)
                   : "");
  if (!f.no_rates.empty()) fmt::print("rates           not measured: {}\n", f.no_rates);
}

void print_result(const SelfTestResult& r) {
  fmt::print("  {:<20} {}  {:>8.1f} ms  {}\n", r.name, r.passed ? "pass" : "FAIL", 1000 * r.seconds,
             r.detail);
  if (!r.passed) fmt::print("  {:<20} what to do: {}\n", "", r.remedy);
}

Json to_json(const Gpu& g, const Findings& f) {
  Json out = {{"name", g.name},
              {"compute_capability", g.capability()},
              {"multiprocessors", g.multiprocessors},
              {"memory_bytes", g.memory},
              {"available_bytes", g.available},
              {"driver", g.driver},
              {"driver_cuda", g.driver_cuda},
              {"runtime_cuda", g.runtime_cuda},
              {"cublaslt", g.cublaslt},
              {"attention", g.attention},
              {"native", {{"fp8", g.native.fp8}, {"fp4", g.native.fp4}, {"mxfp8", g.native.mxfp8}}}};
  if (f.rates) {
    out["copy_bytes_per_s"] = f.rates->copy_bytes_per_s;
    out["bf16_flops_per_s"] = f.rates->bf16_flops_per_s;
    out["fp8_flops_per_s"] = f.rates->fp8_flops_per_s;
  }
  if (!f.no_rates.empty()) out["rates_not_measured"] = f.no_rates;
  return out;
}

Json to_json(const Findings& f) {
  const Machine& m = f.machine;
  Json gemms = Json::array(), tests = Json::array();
  for (const GemmKind& g : f.products)
    gemms.push_back({{"kind", g.name}, {"how", g.how}, {"detail", g.detail}});
  for (const SelfTestResult& r : f.tests)
    tests.push_back({{"name", r.name},
                     {"passed", r.passed},
                     {"seconds", r.seconds},
                     {"detail", r.detail},
                     {"remedy", r.remedy}});
  Json out = {{"version", m.version},
              {"cpu", m.cpu},
              {"threads", f.threads},
              {"hardware_threads", m.hardware_threads},
              {"simd", m.simd},
              {"native_bf16", m.native_bf16},
              {"memory_bytes", m.memory},
              {"available_bytes", m.available},
              {"onednn", m.onednn},
              {"backends", m.backends},
              {"backend", std::string(name_of(f.backend))},
              {"gemm", gemms},
              {"self_tests", tests},
              {"passed", f.failed().empty()}};
  if (f.gpu) out["gpu"] = to_json(*f.gpu, f);
  return out;
}

/// Only of a card whose arithmetic is right; a card without the memory for it is still sound.
void measure(Stream& stream, Findings& f) {
  try {
    check(cuda::kBuilt, "this build has no cuda backend");
    f.rates = cuda::kMeasureGpu(stream);
  } catch (const Error& e) {
    f.no_rates = e.what();
  }
}

ExitCode run(const Options& o) {
  Workplace here(o.machine);
  Stream& stream = here.stream;
  Findings f{.machine = describe_machine(), .backend = stream.kind(), .threads = stream.pool().threads()};
  const bool on_gpu = stream.kind() == BackendKind::Cuda && cuda::kBuilt;
  if (on_gpu) f.gpu = cuda::kDescribeGpu(stream);
  f.products = on_gpu ? gemm_kinds(*f.gpu) : gemm_kinds(stream.kind(), f.machine);
  if (!o.json) {
    print_machine(f);
    if (on_gpu) print_gpu(*f.gpu);
    fmt::print("products\n");
    for (const GemmKind& g : f.products) fmt::print("  {:<6} {:<15} {}\n", g.name, g.how, g.detail);
    fmt::print("self-tests\n");
  }
  f.tests = run_self_tests(stream, o.fault);
  const std::vector<std::string> failed = f.failed();
  if (on_gpu && failed.empty()) measure(stream, f);
  if (o.json) {
    fmt::print("{}", dump_json(to_json(f)));
  } else {
    for (const SelfTestResult& r : f.tests) print_result(r);
    print_rates(f);
    if (failed.empty()) fmt::print("all {} self-tests pass\n", f.tests.size());
  }
  if (failed.empty()) return 0;
  fmt::print(stderr, "nibble: {} of {} self-tests failed: {}{}\n", failed.size(), f.tests.size(),
             fmt::join(failed, ", "), on_gpu ? "; this card is refused: nothing may be trained on it" : "");
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
      "native: the processor or the card multiplies these numbers itself. emulated-exact: operands are\n"
      "converted without rounding to a type that it multiplies, so that only the order of summation differs\n"
      "from hardware support. With --backend cuda: the card, its driver and libraries, what a training step\n"
      "multiplies natively, and the self-tests on the card.\n"
      "Exit codes: 0 every self-test passed; 1 one failed, named with what to do, or there is no card; 2 bad "
      "usage.");
  return [o] { return run(*o); };
}

}  // namespace nibble
