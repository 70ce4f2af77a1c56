// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/selftest.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/nearest.h"

namespace nibble {
namespace {

constexpr const char* kBinaryRemedy =
    "the binary was miscompiled, or built with flags that change floating-point results (-ffast-math, "
    "flush-to-zero): rebuild with the release preset and the compiler it names";
constexpr const char* kBackendRemedy =
    "do not train on this backend: run `nibble doctor --backend ref`; when that passes, use --backend ref or "
    "rebuild, and report the failure with the output of `nibble doctor --json`";
constexpr const char* kGemmRemedy =
    "do not train on this backend: products differ from the exact ones. Try another oneDNN version or "
    "ONEDNN_MAX_CPU_ISA=AVX2, check with `nibble doctor --backend ref`, and report the output of `nibble "
    "doctor --json`";
constexpr const char* kCardRemedy =
    "do not train on this card: see that the binary was built for its compute capability "
    "(-DNIBBLE_CUDA_ARCHITECTURES), that `nvidia-smi -q -d ECC` counts no errors and that `nibble doctor "
    "--backend cpu` passes; use another card or --backend cpu, and report the failure with the output of "
    "`nibble doctor --backend cuda --json`";

}  // namespace

const std::vector<SelfTest>& self_tests() {
  static const std::vector<SelfTest> tests = {
      {"e2m1 codec", kBinaryRemedy, false, selftest::e2m1_codec},
      {"e4m3 codec", kBinaryRemedy, false, selftest::e4m3_codec},
      {"e5m2 codec", kBinaryRemedy, false, selftest::e5m2_codec},
      {"e8m0 codec", kBinaryRemedy, false, selftest::e8m0_codec},
      {"bf16 codec", kBinaryRemedy, false, selftest::bf16_codec},
      {"philox answers", kBinaryRemedy, false, selftest::philox_answers},
      {"nibble order", kBackendRemedy, true, selftest::nibble_order},
      {"quantiser bytes", kBackendRemedy, true, selftest::quantiser_bytes},
      {"stochastic rounding", kBackendRemedy, true, selftest::stochastic_means},
      {"hadamard", kBackendRemedy, true, selftest::hadamard_orthogonality},
      {"non-finite", kBackendRemedy, true, selftest::non_finite_detection},
      {"integer gemm", kGemmRemedy, true, selftest::integer_gemm},
      {"nvfp4 gemm", kGemmRemedy, true, selftest::nvfp4_gemm},
      {"coded products", kGemmRemedy, true, selftest::coded_products},
  };
  return tests;
}

SelfTestResult run_self_test(const SelfTest& test, Stream& stream, bool fault) {
  SelfTestResult result{.name = test.name};
  const auto start = std::chrono::steady_clock::now();
  try {
    result.detail = test.run(stream, fault);
    result.passed = true;
  } catch (const std::exception& e) {
    result.detail = e.what();
    result.remedy = test.on_device && stream.kind() == BackendKind::Cuda ? kCardRemedy : test.remedy;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::vector<SelfTestResult> run_self_tests(Stream& stream, std::string_view faulty) {
  std::vector<std::string> names;
  for (const SelfTest& t : self_tests()) names.emplace_back(t.name);
  check_usage(faulty.empty() || std::find(names.begin(), names.end(), faulty) != names.end(),
              "there is no self-test \"{}\"{}", faulty, did_you_mean(faulty, names));
  std::vector<SelfTestResult> results;
  for (const SelfTest& t : self_tests()) results.push_back(run_self_test(t, stream, t.name == faulty));
  return results;
}

void require_sound_quantisation(Stream& stream) {
  for (const SelfTest& test : self_tests()) {
    const std::string_view name = test.name;
    if (name != "stochastic rounding" && name != "non-finite" && name != "nvfp4 gemm" &&
        name != "coded products")
      continue;
    const SelfTestResult r = run_self_test(test, stream);
    check(r.passed, "the self-test \"{}\" fails on this machine: {}. {} `nibble doctor` runs all of them",
          r.name, r.detail, r.remedy);
  }
}

}  // namespace nibble
