// SPDX-License-Identifier: Apache-2.0
#include "layers/token_mean.h"

#include <vector>

#include "ops/elementwise/elementwise.h"
#include "ops/gemm/gemm.h"

namespace nibble {
namespace {

/// One row, `rows` times.
View<const bf16> repeated(View<const bf16> row, std::int64_t rows) {
  Layout layout = Layout::contiguous(rows, row.size(1));
  layout.stride[0] = 0;
  return {row.data(), layout};
}

}  // namespace

View<const bf16> Ones::row(Device& device, std::int64_t count) {
  if (size_ < count) {
    const std::vector<bf16> ones(static_cast<std::size_t>(count), bf16::nearest(1.0f));
    memory_ = Buffer(device, ones.size() * sizeof(bf16));
    device.copy_from_host(memory_.as<bf16>(), ones.data(), ones.size() * sizeof(bf16));
    size_ = count;
  }
  return View<const bf16>(memory_.as<bf16>(), 1, count);
}

Centred centred(Context& ctx, View<const bf16> ones, ConstRealView x_TF) {
  const std::int64_t T = x_TF.size(0), F = x_TF.size(1);
  const View<bf16> minus_mean = ctx.stream.scratch().take<bf16>(1, F);
  const View<bf16> copy = ctx.stream.scratch().take<bf16>(T, F);
  matmul(ctx.stream, {.a_MK = ones,
                      .b_NK = x_TF.transposed(),
                      .c_MN = minus_mean,
                      .inverse_range = -1.0f / static_cast<float>(T)});
  cast(ctx.stream, {.in_TD = x_TF, .out_TD = copy});
  add(ctx.stream, {.x_TD = copy, .y_TD = repeated(minus_mean, T)});
  return {View<const bf16>(copy), minus_mean};
}

View<const float> mean_product(Context& ctx, const Centred& x, ConstRealView w_NK, View<const float> bias) {
  const View<float> out = ctx.stream.scratch().take<float>(1, w_NK.size(0));
  matmul(ctx.stream,
         {.a_MK = x.minus_mean, .b_NK = w_NK, .c_MN = out, .inverse_range = -1.0f, .bias_N = bias});
  return View<const float>(out.data(), w_NK.size(0));
}

void add_mean_products(Context& ctx, View<const bf16> ones, ConstRealView dy_TN, const Centred& dy,
                       const Centred& x, View<float> grad_NK) {
  const ArenaScope scope(ctx.stream.scratch());
  const View<float> left = ctx.stream.scratch().take<float>(2, grad_NK.size(0));
  const View<float> right = ctx.stream.scratch().take<float>(2, grad_NK.size(1));
  matmul(ctx.stream, {.a_MK = ones, .b_NK = dy_TN.transposed(), .c_MN = left.rows(0, 1)});
  cast(ctx.stream, {.in_TD = x.minus_mean, .out_TD = right.rows(0, 1)});
  cast(ctx.stream, {.in_TD = dy.minus_mean, .out_TD = left.rows(1, 1)});
  matmul(ctx.stream, {.a_MK = ones, .b_NK = x.matrix.transposed(), .c_MN = right.rows(1, 1)});
  matmul(ctx.stream, {.a_MK = View<const float>(left).transposed(),
                      .b_NK = View<const float>(right).transposed(),
                      .c_MN = grad_NK,
                      .inverse_range = -1.0f,
                      .beta = 1});
}

}  // namespace nibble
