// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_bench.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(GemmBench, TheProductsOfALinearHaveTheSameOperations) {
  for (const GemmCase& c : gemms_of_linear("up", 64, 96, 32))
    EXPECT_EQ(c.flops(), 2.0 * 64 * 96 * 32) << c.name;
}

TEST(GemmBench, EveryCaseIsTimedWithEveryKindOfOperand) {
  HostDevice device;
  Stream stream(BackendKind::Cpu, device, 1);
  using Operands = GemmCase::Operands;
  for (Operands o : {Operands::Bf16, Operands::Fp32, Operands::Fp8, Operands::Fp4, Operands::Mxfp8}) {
    const std::vector<GemmCase> cases = gemms_of_linear("up", 64, 96, 32, o);
    const std::vector<GemmRate> rates = measure_gemms(stream, cases, 1e-4);
    ASSERT_EQ(rates.size(), cases.size());
    for (const GemmRate& r : rates) EXPECT_GT(r.flops_per_s(), 0) << r.gemm.name;
  }
}

}  // namespace
}  // namespace nibble
