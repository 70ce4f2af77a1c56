// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

/// The mean over the tokens, taken out of an operand before it is quantised and given back exactly: with
/// x = x_c + 1 mean^T and dy = dy_c + 1 nu^T,
///   y   = Q(x_c) Q(w)^T     + 1 (w mean)^T
///   dx  = Q(dy_c) Q(w)      + 1 (w^T nu)^T
///   dw += Q(dy_c^T) Q(x_c)  + (sum of dy) mean^T + nu (sum of x_c)^T
/// Means are rounded to BF16 before they are subtracted, so that the products of the second column hold for
/// the very numbers that were subtracted; x_c and dy_c are rounded to BF16 once. The tokens are those of a
/// micro-batch. Source: [AVERIS].
namespace nibble {

struct Centred {
  ConstRealView matrix;         ///< x_c, in scratch memory
  View<const bf16> minus_mean;  ///< [1, F]: -mean
};

/// Row vectors of ones, as long as the longest matrix that asked. Grows outside recorded steps alone, since
/// the first step of a plan is not recorded.
class Ones {
 public:
  View<const bf16> row(Device& device, std::int64_t count);

 private:
  Buffer memory_;
  std::int64_t size_ = 0;
};

/// `ones`: [1, T]. x is BF16; the results are taken from stream.scratch().
Centred centred(Context& ctx, View<const bf16> ones, ConstRealView x_TF);

/// bias[n] = sum over k of w[n,k] mean[k] (+ `bias`), FP32, from stream.scratch(): what a product whose left
/// operand is `x` takes as its bias. w is a BF16 matrix or its transposed view.
View<const float> mean_product(Context& ctx, const Centred& x, ConstRealView w_NK,
                               View<const float> bias = {});

/// grad[n,k] += the last two terms of dw.
void add_mean_products(Context& ctx, View<const bf16> ones, ConstRealView dy_TN, const Centred& dy,
                       const Centred& x, View<float> grad_NK);

}  // namespace nibble
