// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gemm/lt_product.h"

namespace nibble {

/// One product to time: c[M, N] = a[M, K] b[N, K]^T.
struct GemmCase {
  enum class Operands : std::uint8_t { Bf16, Fp32, Fp8, Fp4, Mxfp8 };

  std::string name;
  std::int64_t M = 0, N = 0, K = 0;
  Operands operands = Operands::Bf16;
  bool a_transposed = false, b_transposed = false;  ///< a lies as [K, M], b as [K, N]; not for codes
  DType result = DType::BF16;
  bool accumulate = false;  ///< beta = 1 into FP32
  double flops() const {
    return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  }
};

struct GemmRate {
  GemmCase gemm;
  double seconds = 0;       ///< of the product as a step issues it, its own kernels included
  double best_seconds = 0;  ///< cuda: the fastest of what the library proposes; 0 elsewhere
  int best = 0;  ///< its place in the library's order: 0 is what a step takes without a tuning file
  double flops_per_s() const { return gemm.flops() / seconds; }
};

/// The three products of a linear with T tokens, N outputs and K inputs as layers/linear issues them: fprop
/// and dgrad to BF16, wgrad added to FP32. With codes the operands lie as rows, as tensor cores want them.
std::vector<GemmCase> gemms_of_linear(std::string_view name, std::int64_t T, std::int64_t N, std::int64_t K,
                                      GemmCase::Operands operands = GemmCase::Operands::Bf16);

/// Times every case on random numbers, about `seconds` each; on a GPU by the GPU's clock, several products
/// between two readings. Waits for the device. Throws what the op throws where a device lacks it.
std::vector<GemmRate> measure_gemms(Stream& stream, const std::vector<GemmCase>& cases, double seconds = 0.2);

}  // namespace nibble
