// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string_view>

#include "ops/gemm/lt_product.h"

namespace nibble::cuda {

/// Throws Error{Runtime} naming `what` and what the library says.
void lt_check(cublasStatus_t status, std::string_view what);

template <auto destroy>
struct LtDestroy {
  template <class T>
  void operator()(T* p) const {
    destroy(p);
  }
};

/// Where the numbers of one call lie. Alpha: `device_alpha` where the product says so, else `alpha`.
struct LtPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  float alpha = 1;
  const float* device_alpha = nullptr;
  const float* bias = nullptr;
  const void* a_scale = nullptr;  ///< one FP32 number or swizzled block scales, as LtProduct::scale says
  const void* b_scale = nullptr;
};

/// The library's objects for a product. They are plain memory of the host: making and asking them needs no
/// GPU.
class LtDescription {
 public:
  /// Products of BF16 and of codes are summed in FP32, FP32 operands are not rounded to TF32.
  explicit LtDescription(const LtProduct& p);

  /// What the next call reads beside its operands.
  void point_at(const LtProduct& p, const LtPointers& at);

  cublasLtMatmulDesc_t product() const { return product_.get(); }
  cublasLtMatrixLayout_t a() const { return a_.get(); }
  cublasLtMatrixLayout_t b() const { return b_.get(); }
  cublasLtMatrixLayout_t d() const { return d_.get(); }

 private:
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LtDestroy<cublasLtMatrixLayoutDestroy>>;
  static Layout layout_of(const LtMatrix& m);
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    lt_check(cublasLtMatmulDescSetAttribute(product_.get(), attribute, &value, sizeof(value)),
             "describing a product");
  }

  std::unique_ptr<cublasLtMatmulDescOpaque_t, LtDestroy<cublasLtMatmulDescDestroy>> product_;
  Layout a_, b_, d_;
};

}  // namespace nibble::cuda
