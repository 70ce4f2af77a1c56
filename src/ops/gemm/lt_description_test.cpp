// SPDX-License-Identifier: Apache-2.0
#ifdef NIBBLE_WITH_CUDA
#include <gtest/gtest.h>

#include "ops/gemm/lt_description_cuda.h"

/// The library's own objects, asked for what was set: needs the library and no GPU.
namespace nibble::cuda {
namespace {

template <class T>
T get(const LtDescription& d, cublasLtMatmulDescAttributes_t attribute) {
  T value{};
  std::size_t written = 0;
  lt_check(cublasLtMatmulDescGetAttribute(d.product(), attribute, &value, sizeof(value), &written), "asking");
  EXPECT_EQ(written, sizeof(value));
  return value;
}
template <class T>
T get(cublasLtMatrixLayout_t m, cublasLtMatrixLayoutAttribute_t attribute) {
  T value{};
  std::size_t written = 0;
  lt_check(cublasLtMatrixLayoutGetAttribute(m, attribute, &value, sizeof(value), &written), "asking");
  return value;
}

TEST(LtDescriptionTest, ABf16ProductIsSummedInFp32) {
  LtProduct p{.a = {LtType::BF16, 64, 48, 72, 16}, .b = {LtType::BF16, 64, 32, 64, 16}, .transpose_a = true};
  p.d = {LtType::F32, 48, 32, 50, 8};
  const LtDescription d(p);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), CUBLAS_COMPUTE_32F);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_SCALE_TYPE), CUDA_R_32F);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_N);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_POINTER_MODE), CUBLASLT_POINTER_MODE_HOST);
  EXPECT_EQ(get<std::uint32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(get<std::uint32_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_16BF);
  EXPECT_EQ(get<std::uint64_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_ROWS), 64u);
  EXPECT_EQ(get<std::uint64_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_COLS), 48u);
  EXPECT_EQ(get<std::int64_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_LD), 72);
  EXPECT_EQ(get<std::uint32_t>(d.d(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_32F);
  EXPECT_EQ(get<std::int64_t>(d.d(), CUBLASLT_MATRIX_LAYOUT_LD), 50);
}

TEST(LtDescriptionTest, AnFp4ProductHasAScaleEverySixteenElementsOfBothOperands) {
  LtProduct p{.a = {LtType::E2M1, 64, 48, 64, 16}, .b = {LtType::E2M1, 64, 32, 64, 16}, .transpose_a = true};
  p.d = {LtType::BF16, 48, 32, 48, 16};
  p.scale = LtScale::Vec16E4M3;
  p.alpha_on_device = true;
  LtDescription d(p);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE),
            CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_B_SCALE_MODE),
            CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_POINTER_MODE), CUBLASLT_POINTER_MODE_DEVICE);
  EXPECT_EQ(get<std::uint32_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_4F_E2M1);
  const float a = 1, b = 2;
  d.point_at(p, {.a_scale = &a, .b_scale = &b});
  EXPECT_EQ(get<const void*>(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER), &a);
  EXPECT_EQ(get<const void*>(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER), &b);
}

TEST(LtDescriptionTest, AnFp8ProductHasAScaleATensorAndTheAccumulationThatWasAskedFor) {
  LtProduct p{.a = {LtType::E5M2, 64, 48, 64, 16}, .b = {LtType::E4M3, 64, 32, 64, 16}, .transpose_a = true};
  p.d = {LtType::BF16, 48, 32, 48, 16};
  p.scale = LtScale::Tensor;
  for (bool fast : {false, true}) {
    p.fast_accumulation = fast;
    const LtDescription d(p);
    EXPECT_EQ(get<std::int8_t>(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM), fast ? 1 : 0);
    EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE),
              CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
    EXPECT_EQ(get<std::uint32_t>(d.a(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_8F_E5M2);
    EXPECT_EQ(get<std::uint32_t>(d.b(), CUBLASLT_MATRIX_LAYOUT_TYPE), CUDA_R_8F_E4M3);
  }
  p.scale = LtScale::Vec32E8M0;
  EXPECT_EQ(get<std::int32_t>(LtDescription(p), CUBLASLT_MATMUL_DESC_B_SCALE_MODE),
            CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
}

TEST(LtDescriptionTest, ABiasIsFp32) {
  LtProduct p{.a = {LtType::BF16, 64, 48, 64, 16}, .b = {LtType::BF16, 64, 32, 64, 16}, .transpose_a = true};
  p.d = {LtType::F32, 48, 32, 48, 16};
  p.bias = true;
  LtDescription d(p);
  const float bias = 0;
  d.point_at(p, {.bias = &bias});
  EXPECT_EQ(get<std::uint32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(get<std::int32_t>(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), CUDA_R_32F);
  EXPECT_EQ(get<const void*>(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER), &bias);
}

}  // namespace
}  // namespace nibble::cuda
#endif
