// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/lt_product.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "ops/gemm/coded_forms.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/gemm/native.h"

/// A description says what a library that thinks in columns will read and write. An interpreter of
/// descriptions stands in for the library: whatever it computes must be what matmul computes.
namespace nibble {
namespace {

/// D = op(A) op(B) + beta D, element by element, as the library's documentation defines it.
void interpret(const LtProduct& p, const float* a, const float* b, float* d) {
  const auto element = [](const LtMatrix& m, const float* x, bool transposed, std::int64_t i,
                          std::int64_t j) {
    if (transposed) std::swap(i, j);
    EXPECT_TRUE(i < m.rows && j < m.cols) << "outside of the matrix";
    return x[i + j * m.ld];
  };
  const std::int64_t summed = p.transpose_a ? p.a.rows : p.a.cols;
  EXPECT_EQ(summed, p.transpose_b ? p.b.cols : p.b.rows);
  EXPECT_EQ(p.d.rows, p.transpose_a ? p.a.cols : p.a.rows);
  EXPECT_EQ(p.d.cols, p.transpose_b ? p.b.rows : p.b.cols);
  for (const LtMatrix* m : {&p.a, &p.b, &p.d}) EXPECT_GE(m->ld, m->rows);
  for (std::int64_t i = 0; i < p.d.rows; ++i)
    for (std::int64_t j = 0; j < p.d.cols; ++j) {
      float sum = p.accumulate ? d[i + j * p.d.ld] : 0;
      for (std::int64_t k = 0; k < summed; ++k)
        sum += element(p.a, a, p.transpose_a, i, k) * element(p.b, b, p.transpose_b, k, j);
      d[i + j * p.d.ld] = sum;
    }
}

/// Small integers in rows with a gap behind them, or the transpose of such a matrix.
struct Integers {
  std::vector<float> memory;
  RealView view;
  Integers(std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t gap) {
    if (transposed) std::swap(rows, cols);
    Layout l = Layout::contiguous(rows, cols);
    l.stride[0] = cols + gap;
    for (std::int64_t i = 0; i < rows * (cols + gap); ++i)
      memory.push_back(static_cast<float>(i * 7 % 11 - 5));
    view = RealView(memory.data(), DType::F32, l);
    if (transposed) view = view.transposed();
  }
};

using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

class EveryLayout : public ::testing::TestWithParam<Shape> {};

TEST_P(EveryLayout, TheDescriptionComputesTheProduct) {
  const std::int64_t M = std::get<0>(GetParam()), N = std::get<1>(GetParam()), K = std::get<2>(GetParam());
  HostDevice device;
  Stream stream(BackendKind::Ref, device, 1);
  for (int form = 0; form < 16; ++form) {
    const std::int64_t gap = (form & 4) != 0 ? 3 : 0;
    const Integers a(M, K, (form & 1) != 0, gap), b(N, K, (form & 2) != 0, gap);
    const Integers expected(M, N, false, gap), got(M, N, false, gap);
    MatMul g{.a_MK = a.view, .b_NK = b.view, .c_MN = expected.view, .beta = (form & 8) != 0 ? 1.0f : 0.0f};
    matmul(stream, g);
    g.c_MN = got.view;
    const std::optional<LtProduct> p = lt_product(g);
    ASSERT_TRUE(p.has_value());
    interpret(*p, b.memory.data(), a.memory.data(), static_cast<float*>(got.view.data()));
    EXPECT_EQ(got.memory, expected.memory) << "form " << form;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EveryLayout,
                         ::testing::Values(Shape{5, 7, 3}, Shape{1, 6, 4}, Shape{6, 1, 4}, Shape{4, 5, 1},
                                           Shape{1, 1, 9}, Shape{1, 1, 1}));

TEST(LtProductTest, RowsThatOverlapAreNoMatrixOfTheLibrary) {
  const std::vector<float> memory(64);
  Layout overlapping = Layout::contiguous(4, 8);
  overlapping.stride[0] = 2;
  const ConstRealView a(memory.data(), DType::F32, overlapping);
  std::vector<float> c(4 * 4);
  EXPECT_FALSE(lt_product(MatMul{
      .a_MK = a, .b_NK = View<const float>(memory.data(), 4, 8), .c_MN = View<float>(c.data(), 4, 4)}));
}

TEST(LtProductTest, AlignmentIsThatOfEveryColumnAndAtMostSixteenBytes) {
  alignas(256) static bf16 memory[4096];
  const auto alignment = [](std::int64_t offset, std::int64_t stride) {
    Layout l = Layout::contiguous(3, 8);
    l.stride[0] = stride;
    return lt_product(MatMul{.a_MK = ConstRealView(memory + offset, DType::BF16, l),
                             .b_NK = View<const bf16>(memory, 8, 8),
                             .c_MN = View<bf16>(memory + 2048, 3, 8)})
        ->b.alignment;
  };
  EXPECT_EQ(alignment(0, 64), 16);
  EXPECT_EQ(alignment(4, 64), 8);
  EXPECT_EQ(alignment(2, 64), 4);
  EXPECT_EQ(alignment(1, 64), 2);
  EXPECT_EQ(alignment(0, 9), 2);
  EXPECT_EQ(alignment(0, 12), 8);
}

TEST(LtProductTest, WhatTheLibraryCannotFinishItLeavesAsFp32Sums) {
  std::vector<bf16> x(64);
  std::vector<float> y(64);
  const std::vector<float> numbers(8);
  MatMul g{.a_MK = View<const bf16>(x.data(), 4, 8),
           .b_NK = View<const bf16>(x.data(), 8, 8),
           .c_MN = View<bf16>(x.data(), 4, 8),
           .a_scale = numbers.data()};
  EXPECT_EQ(lt_product(g)->d.type, LtType::BF16);
  EXPECT_TRUE(lt_product(g)->alpha_on_device);
  const auto expect_sums = [](const LtProduct& p) {
    EXPECT_EQ(p.d, (LtMatrix{LtType::F32, 8, 4, 8, 16}));
    EXPECT_FALSE(p.alpha_on_device || p.bias || p.accumulate);
  };
  g.bias_N = View<const float>(numbers.data(), 8);
  expect_sums(*lt_product(g));
  g.c_MN = View<float>(y.data(), 4, 8);
  EXPECT_TRUE(lt_product(g)->bias) << "an FP32 bias fits an FP32 result";
  g.beta = 1;
  g.a_row_scale_M = View<const float>(numbers.data(), 4);
  expect_sums(*lt_product(g));
}

TEST(LtProductTest, OurSecondOperandIsTheLibrarysFirst) {
  std::vector<std::uint8_t> codes(64 * 64), scales(128 * 4);
  std::vector<float> c(32 * 48);
  const float amax = 2;
  const View<const std::uint8_t> a(codes.data(), 32, 64), b(codes.data(), 48, 64);
  const LtProduct fp8 = lt_product(coded(MatMulFp8{.a_MK = a,
                                                   .b_NK = b,
                                                   .a_format = Format::Fp8E5M2,
                                                   .a_scale = &amax,
                                                   .c_MN = View<float>(c.data(), 32, 48),
                                                   .fast_accumulation = true}));
  EXPECT_EQ(fp8.a.type, LtType::E4M3);
  EXPECT_EQ(fp8.b.type, LtType::E5M2);
  EXPECT_TRUE(fp8.transpose_a && !fp8.transpose_b && fp8.fast_accumulation);
  EXPECT_EQ(fp8.scale, LtScale::Tensor);
  EXPECT_FALSE(fp8.alpha_on_device) << "the library applies the scales";
  const View<const std::uint8_t> s(scales.data(), 128 * 4);
  const LtProduct fp4 = lt_product(coded(MatMulFp4{.a_codes = View<const std::uint8_t>(codes.data(), 32, 32),
                                                   .b_codes = View<const std::uint8_t>(codes.data(), 48, 32),
                                                   .a_scales = s,
                                                   .b_scales = s,
                                                   .a_amax = &amax,
                                                   .b_amax = &amax,
                                                   .c_MN = View<float>(c.data(), 32, 48)}));
  EXPECT_EQ(fp4.a, (LtMatrix{LtType::E2M1, 64, 48, 64, 16}));
  EXPECT_EQ(fp4.b, (LtMatrix{LtType::E2M1, 64, 32, 64, 16}));
  EXPECT_EQ(fp4.d, (LtMatrix{LtType::F32, 48, 32, 48, 16}));
  EXPECT_EQ(fp4.scale, LtScale::Vec16E4M3);
  EXPECT_TRUE(fp4.alpha_on_device) << "the tensors' amax are known there alone";
  const LtProduct mx = lt_product(coded(MatMulMxfp8{
      .a_codes = a, .b_codes = b, .a_scales = s, .b_scales = s, .c_MN = View<float>(c.data(), 32, 48)}));
  EXPECT_EQ(mx.scale, LtScale::Vec32E8M0);
  EXPECT_FALSE(mx.alpha_on_device);
}

TEST(NativeGemmTest, EveryGenerationHasWhatItsTensorCoresMultiply) {
  EXPECT_EQ(native_gemm(80), (NativeGemm{}));
  EXPECT_EQ(native_gemm(90), (NativeGemm{.fp8 = true}));
  for (int blackwell : {100, 103, 120})
    EXPECT_EQ(native_gemm(blackwell), (NativeGemm{.fp8 = true, .fp4 = true, .mxfp8 = true}));
  HostDevice host;
  EXPECT_EQ(native_gemm(host), NativeGemm{});
}

TEST(GemmTuningTest, TextThatIsReadAgainIsTheSameTuning) {
  GemmTuning tuning{.machine = "cublasLt 1 sm 90 multiprocessors 132", .choices = {}};
  LtProduct p{.a = {LtType::BF16, 64, 48, 72, 16}, .b = {LtType::BF16, 64, 32, 64, 8}, .transpose_a = true};
  p.d = {LtType::F32, 48, 32, 48, 4};
  tuning.choices[p] = 3;
  p.accumulate = p.alpha_on_device = p.bias = true;
  tuning.choices[p] = 1;
  EXPECT_EQ(GemmTuning::parse(tuning.text()), tuning);
  const GemmTuning none{.machine = "another", .choices = {}};
  EXPECT_EQ(GemmTuning::parse(none.text()), none);
}

TEST(GemmTuningTest, LinesOfAnotherFormAreRefused) {
  const std::string first = GemmTuning{.machine = "m", .choices = {}}.text();
  EXPECT_THROW(GemmTuning::parse(""), Error);
  EXPECT_THROW(GemmTuning::parse("something else\n"), Error);
  EXPECT_THROW(GemmTuning::parse(first + "1 2 3\n"), Error);
  EXPECT_THROW(GemmTuning::parse(first + "0 1 1 1 16 0 1 1 1 16 0 1 1 1 16 0 0 0 0 0 0 0 -1\n"), Error);
  EXPECT_THROW(GemmTuning::parse(first + "0 1 1 1 16 0 1 1 1 16 0 1 1 1 16 0 0 0 0 0 0 0 1 1\n"), Error);
  EXPECT_NO_THROW(GemmTuning::parse(first + "0 1 1 1 16 0 1 1 1 16 0 1 1 1 16 0 0 0 0 0 0 0 1\n"));
}

TEST(GemmTuningTest, ADeviceWithoutTheLibraryRefusesIt) {
  HostDevice host;
  EXPECT_THROW(use_gemm_tuning(host, {}), Error);
}

}  // namespace
}  // namespace nibble
