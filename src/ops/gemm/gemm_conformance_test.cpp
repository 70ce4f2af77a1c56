// SPDX-License-Identifier: Apache-2.0
#include "ops/conformance.h"
#include "ops/gemm/gemm.h"
#ifdef NIBBLE_WITH_CUDA
#include "ops/gemm/gemm_kernels_cuda.h"
#endif

namespace nibble {
namespace {

using conformance::Bound;
using conformance::Case;
using conformance::compare;

struct Shape {
  std::int64_t M, N, K;
};
constexpr Shape kShapes[] = {{1, 1, 1},      {1, 5, 3},     {7, 1, 9},      {5, 16, 1},   {33, 17, 48},
                             {300, 150, 64}, {64, 128, 96}, {16, 48, 2048}, {130, 72, 32}};

/// A matrix as it is, or as the transpose of what lies in memory.
ConstRealView operand(Case& c, bool transposed, std::int64_t rows, std::int64_t columns) {
  return transposed ? c.input(columns, rows).transposed() : c.input(rows, columns);
}

/// The bound of the header is K 2^-24 sum|a||b|; these inputs are normal, so that the sum of magnitudes is
/// 0.8 sqrt(K) times what one result is on average: at most 0.4 * 64 / 2^24 of it, doubled for extremes.
constexpr double kBound = 4e-6;
/// What rounding leaves of a sum grows with sqrt(K) as the sum itself does.
Bound sum_bound(std::int64_t K) {
  return Bound::of(kBound * std::sqrt(std::max(1.0, static_cast<double>(K) / 64)));
}

void compare_forms(const Op<MatMul>& op, const Shape& s) {
  for (int layout = 0; layout < 4; ++layout)
    for (int form = 0; form < 5; ++form) {
      const bool scaled = form >= 1 && form <= 3, bias = form == 2, accumulate = form == 3;
      compare<MatMul>(
          op, fmt::format("M={} N={} K={} layout={} form={}", s.M, s.N, s.K, layout, form),
          [&](Case& c) {
            MatMul g{.a_MK = operand(c, (layout & 1) != 0, s.M, s.K),
                     .b_NK = operand(c, (layout & 2) != 0, s.N, s.K),
                     .c_MN = accumulate ? RealView(c.output_f32("c", sum_bound(s.K), s.M, s.N))
                                        : c.output("c", sum_bound(s.K), s.M, s.N)};
            if (scaled) {
              g.a_scale = c.input_f32(0, 3.5, 1).data();
              g.b_scale = c.input_f32(0, 0.3, 1).data();
              g.inverse_range = 0.7f;
            }
            if (form == 4) g.b_scale = c.input_f32(0, 0.3, 1).data();  // alpha is this number
            if (bias) g.bias_N = c.input_f32(1, 0, s.N);
            if (accumulate) g.beta = 1;
            return g;
          },
          // Without BF16 in hardware the operands are widened, and oneDNN adds FP32 in another order.
          {.same_levels = false});
    }
}

TEST(Conformance, matmul) {
  for (const Shape& s : kShapes) compare_forms(matmul, s);
}

#ifdef NIBBLE_WITH_CUDA
/// What the library refuses comes to this kernel; here everything does.
TEST(MatMulConformance, TheKernelWithoutTheLibraryComputesTheSame) {
  Op<MatMul> direct = matmul;
  direct.cuda = cuda::multiply_directly;
  for (const Shape& s : {Shape{1, 1, 1}, {5, 16, 1}, {33, 17, 48}, {130, 70, 37}}) compare_forms(direct, s);
}
#endif

/// The stated bound itself, element by element, with BF16 operands on every path that this processor has.
TEST(MatMulConformance, EveryElementIsWithinTheBoundOfItsOwnSum) {
  const conformance::KeepSimdLevel keep;
  HostDevice device;
  const std::int64_t M = 65, N = 70, K = 1000;
  for (SimdLevel level : {SimdLevel::Avx512, SimdLevel::Avx2, SimdLevel::Baseline}) {
    set_simd_level(level);
    Case c(device, 7, DType::BF16, 3);
    const ConstRealView a = c.input(M, K), b = c.input(N, K);
    const View<float> out = c.output_f32("c", {}, M, N);
    Stream stream(BackendKind::Cpu, device, 2);
    matmul(stream, {.a_MK = a, .b_NK = b, .c_MN = out});
    for (std::int64_t m = 0; m < M; ++m)
      for (std::int64_t n = 0; n < N; ++n) {
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < K; ++k) {
          const double product = static_cast<double>(a.get(m, k)) * b.get(n, k);
          sum += product;
          magnitude += std::abs(product);
        }
        const double bound = static_cast<double>(K) * 0x1p-24 * magnitude;
        ASSERT_NEAR(out(m, n), sum, bound) << "m=" << m << " n=" << n << " level=" << static_cast<int>(level);
      }
  }
}

/// Integers small enough that no order of summation rounds: a wrong stride or a lost term cannot hide.
TEST(MatMulConformance, SumsOfSmallIntegersAreExact) {
  for (const Shape& s : {Shape{40, 30, 100}, Shape{513, 129, 33}})
    for (int layout = 0; layout < 4; ++layout)
      compare<MatMul>(
          matmul, fmt::format("integers M={} N={} K={} layout={}", s.M, s.N, s.K, layout), [&](Case& c) {
            const auto integers = [&](bool transposed, std::int64_t rows, std::int64_t columns) {
              const RealView x = transposed ? c.output("operand", Bound::same_bytes(), columns, rows)
                                            : c.output("operand", Bound::same_bytes(), rows, columns);
              Case::fill(x, [](std::int64_t i, std::int64_t j) {
                return static_cast<float>((i * 7 + j * 3) % 11 - 5);
              });
              return ConstRealView(transposed ? x.transposed() : x);
            };
            const ConstRealView a = integers((layout & 1) != 0, s.M, s.K);
            return MatMul{.a_MK = a,
                          .b_NK = integers((layout & 2) != 0, s.N, s.K),
                          .c_MN = c.output_f32("c", Bound::same_bytes(), s.M, s.N)};
          });
}

}  // namespace
}  // namespace nibble
