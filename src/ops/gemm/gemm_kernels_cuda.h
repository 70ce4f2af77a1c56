// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/gemm/gemm.h"

/// Our own kernels around the library's products.
namespace nibble::cuda {

/// *alpha = alpha_of(...), on the device: the scales are known there alone.
void write_alpha(Stream& stream, const float* a_scale, const float* b_scale, float inverse_range,
                 float* alpha);

/// c from the sums of the product, contiguous [M, N]: alpha, bias and beta as MatMul says.
void finish_product(Stream& stream, const MatMul& g, const View<const float>& sums_MN);

/// The whole product without the library, for what it refuses: any strides and alignment. Every sum runs
/// along k in order, so the bits depend on the operands alone.
void multiply_directly(Stream& stream, const MatMul& g);

}  // namespace nibble::cuda
