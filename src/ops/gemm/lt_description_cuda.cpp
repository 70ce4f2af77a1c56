// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/lt_description_cuda.h"

#include "base/error.h"

namespace nibble::cuda {
namespace {

cudaDataType_t cuda_type(LtType type) {
  switch (type) {
    case LtType::F32:
      return CUDA_R_32F;
    case LtType::BF16:
      return CUDA_R_16BF;
    case LtType::E4M3:
      return CUDA_R_8F_E4M3;
    case LtType::E5M2:
      return CUDA_R_8F_E5M2;
    case LtType::E2M1:
      return CUDA_R_4F_E2M1;
  }
  fail("an element type that cuBLASLt is not told about");
}

std::int32_t scale_mode(LtScale scale) {
  switch (scale) {
    case LtScale::Vec16E4M3:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    case LtScale::Vec32E8M0:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

}  // namespace

void lt_check(cublasStatus_t status, std::string_view what) {
  check(status == CUBLAS_STATUS_SUCCESS, "{}: cuBLASLt says: {}", what, cublasLtGetStatusString(status));
}

LtDescription::Layout LtDescription::layout_of(const LtMatrix& m) {
  cublasLtMatrixLayout_t layout = nullptr;
  lt_check(cublasLtMatrixLayoutCreate(&layout, cuda_type(m.type), static_cast<std::uint64_t>(m.rows),
                                      static_cast<std::uint64_t>(m.cols), m.ld),
           "describing a matrix");
  return Layout(layout);
}

LtDescription::LtDescription(const LtProduct& p)
    : a_(layout_of(p.a)), b_(layout_of(p.b)), d_(layout_of(p.d)) {
  cublasLtMatmulDesc_t product = nullptr;
  lt_check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  product_.reset(product);
  const auto operation = [](bool transpose) -> std::int32_t { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_a));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_b));
  const std::int32_t pointers = p.alpha_on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST;
  set(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointers);
  if (p.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(CUDA_R_32F));
  }
  if (p.scale == LtScale::None) return;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p.scale));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p.scale));
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(p.fast_accumulation ? 1 : 0));
}

void LtDescription::point_at(const LtProduct& p, const LtPointers& at) {
  if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  if (p.scale == LtScale::None) return;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.a_scale);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.b_scale);
}

}  // namespace nibble::cuda
