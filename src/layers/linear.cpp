// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/elementwise/elementwise.h"
#include "ops/gemm/gemm.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/rotate.h"

namespace nibble {
namespace {

/// Output rows compared with the unquantised product when a step is observed.
constexpr std::int64_t kObservedRows = 16;

/// 2 where the planted fault has the block scales of one operand read one binade too large.
float planted_scale(const Recipe& recipe, const GemmRecipe& gemm, const LinearInfo& linear) {
  const bool planted = !recipe.scale_binade_layers.empty() && is_quantized(gemm.a.format) &&
                       glob_match(recipe.scale_binade_layers, linear.name);
  return planted ? 2.0f : 1.0f;
}

ConstRealView oriented(ConstRealView source, bool transpose) {
  return transpose ? source.transposed() : source;
}

}  // namespace

std::int64_t fault_id(const LinearInfo& linear, Gemm gemm, Operand operand) {
  return (static_cast<std::int64_t>(linear.position) << 8) | (static_cast<std::int64_t>(gemm) << 4) |
         static_cast<std::int64_t>(operand);
}

std::string fault_sentence(std::int64_t step, std::span<const LinearInfo> linears, std::int64_t fault,
                           std::string_view what) {
  const auto gemm = static_cast<Gemm>((fault >> 4) & 15);
  const auto operand = static_cast<Operand>(fault & 15);
  const auto it = std::find_if(linears.begin(), linears.end(),
                               [&](const LinearInfo& l) { return l.position == fault >> 8; });
  return fmt::format(
      "step {}: {}: the {} operand {} holds {}; the 4- and 8-bit formats would hide it. Resume from the last "
      "checkpoint with a lower learning rate, or replay the step in bf16 to see whether the recipe is at "
      "fault",
      step, it != linears.end() ? it->name : "a linear", name(gemm), operand_name(gemm, operand), what);
}

Linear::Linear(LinearInfo info, Device& device, Param weight, Param bias)
    : info_(std::move(info)), device_(&device), weight_(weight), bias_(bias) {}

void Linear::forward(Context& ctx, ConstRealView x_TK, RealView y_TN) {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  const ArenaScope scratch(ctx.stream.scratch());
  const Ready x = prepare(ctx, Gemm::Fprop, Operand::A, plan.fprop.a, x_TK, false);
  const Ready w = prepare_weight(ctx, Gemm::Fprop, plan.fprop.b, false);
  multiply(ctx, plan.fprop, x, w, y_TN, 0, bias_.present() ? bias_.master : View<const float>{});
  observe(ctx, Gemm::Fprop, plan.fprop, x_TK, false, weight_.compute, false, x, w);
  saved_x_TK_ = x_TK;
}

void Linear::backward(Context& ctx, ConstRealView dy_TN, RealView dx_TK) {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  {
    const ArenaScope scratch(ctx.stream.scratch());
    const Ready dy = prepare(ctx, Gemm::Dgrad, Operand::A, plan.dgrad.a, dy_TN, false);
    const Ready wt = prepare_weight(ctx, Gemm::Dgrad, plan.dgrad.b, true);
    multiply(ctx, plan.dgrad, dy, wt, dx_TK, 0);
    observe(ctx, Gemm::Dgrad, plan.dgrad, dy_TN, false, weight_.compute, true, dy, wt);
  }
  {
    const ArenaScope scratch(ctx.stream.scratch());
    const Ready dyt = prepare(ctx, Gemm::Wgrad, Operand::A, plan.wgrad.a, dy_TN, true);
    const Ready xt = prepare(ctx, Gemm::Wgrad, Operand::B, plan.wgrad.b, saved_x_TK_, true);
    multiply(ctx, plan.wgrad, dyt, xt, weight_.grad, 1);
    observe(ctx, Gemm::Wgrad, plan.wgrad, dy_TN, true, saved_x_TK_, true, dyt, xt);
  }
  if (bias_.present()) column_sum(ctx.stream, {.x_TN = dy_TN, .sum_N = bias_.grad});
}

RandomKey Linear::random_key(const Context& ctx, Gemm gemm, Operand operand, std::int64_t features) const {
  return {.seed = ctx.sr_seed,
          .step = static_cast<std::uint32_t>(ctx.step),
          .layer = static_cast<std::uint32_t>(info_.position),
          .role = static_cast<std::uint8_t>(random_role(gemm, operand)),
          .first_element = static_cast<std::uint64_t>(ctx.first_token * features),
          .step_at = ctx.record ? &ctx.record->step : nullptr,
          .stuck_at_zero = ctx.recipe.stuck_random_bits};
}

void Linear::quantize_into(Context& ctx, Gemm gemm, Operand operand, const QuantSpec& spec,
                           ConstRealView source, bool transpose, View<bf16> values, float* amax,
                           float* scale) const {
  quantize(ctx.stream, {.x_RC = source,
                        .spec = spec,
                        .transpose = transpose,
                        .random = random_key(ctx, gemm, operand, source.size(1)),
                        .amax = amax,
                        .scale = scale,
                        .values = values,
                        .fault = ctx.record ? &ctx.record->fault : nullptr,
                        .fault_id = fault_id(info_, gemm, operand)});
  if (ctx.record != nullptr || spec.non_finite != NonFinite::Detect) return;
  const float found = read(ctx.stream.device(), amax);
  if (!std::isfinite(found))
    throw Error(ErrorKind::NonFinite,
                fault_sentence(ctx.step, std::span(&info_, 1), fault_id(info_, gemm, operand),
                               std::isnan(found) ? "a NaN" : "an infinity"));
}

Linear::Ready Linear::prepare(Context& ctx, Gemm gemm, Operand operand, const QuantSpec& spec,
                              ConstRealView source, bool transpose) {
  if (!is_quantized(spec.format)) return {oriented(source, transpose)};
  Arena& scratch = ctx.stream.scratch();
  const std::int64_t rows = source.size(transpose ? 1 : 0), cols = source.size(transpose ? 0 : 1);
  const View<bf16> values = scratch.take<bf16>(rows, cols);
  float* amax = scratch.take<float>(1).data();
  float* scale = scratch.take<float>(1).data();
  quantize_into(ctx, gemm, operand, spec, source, transpose, values, amax, scale);
  return {values, scale};
}

Linear::Ready Linear::prepare_weight(Context& ctx, Gemm gemm, const QuantSpec& spec, bool transpose) {
  const ConstRealView w_NK = weight_.compute;
  if (!is_quantized(spec.format)) return {oriented(w_NK, transpose)};
  const bool shared =
      spec.tile == Tile::Square && spec.rounding == Rounding::NearestEven && spec.rotation == 0;
  const bool own_transpose = transpose && !shared;
  WeightCache& cache = own_transpose ? transposed_copy_ : row_copy_;
  const std::int64_t rows = w_NK.size(own_transpose ? 1 : 0), cols = w_NK.size(own_transpose ? 0 : 1);
  if (cache.values.data() == nullptr) {
    cache.values = Buffer(*device_, static_cast<std::size_t>(rows * cols) * sizeof(bf16));
    cache.scale = Buffer(*device_, 2 * sizeof(float));
  }
  const View<bf16> values(cache.values.as<bf16>(), rows, cols);
  if (!cache.filled || cache.version != ctx.weights_version || cache.spec != spec) {
    float* scale = cache.scale.as<float>();
    quantize_into(ctx, gemm, Operand::B, spec, w_NK, own_transpose, values, scale + 1, scale);
    cache.filled = true;
    cache.version = ctx.weights_version;
    cache.spec = spec;
  }
  return {oriented(values, transpose && shared), cache.scale.as<float>()};
}

void Linear::multiply(Context& ctx, const GemmRecipe& recipe, const Ready& a, const Ready& b, RealView out,
                      float beta, View<const float> bias) const {
  matmul(ctx.stream, {.a_MK = a.matrix,
                      .b_NK = b.matrix,
                      .c_MN = out,
                      .a_scale = a.scale,
                      .b_scale = b.scale,
                      .inverse_range = planted_scale(ctx.recipe, recipe, info_) *
                                       gemm_inverse_range(recipe.a.format, recipe.b.format),
                      .beta = beta,
                      .bias_N = bias});
}

void Linear::observe(Context& ctx, Gemm gemm, const GemmRecipe& recipe, ConstRealView a_source,
                     bool a_transpose, ConstRealView b_source, bool b_transpose, const Ready& a,
                     const Ready& b) const {
  if (ctx.observer == nullptr || !ctx.observer->wants(info_, gemm)) return;
  if (!is_quantized(recipe.a.format) && !is_quantized(recipe.b.format)) return;
  if (is_quantized(recipe.a.format)) observe_operand(ctx, gemm, Operand::A, recipe.a, a_source, a_transpose);
  if (is_quantized(recipe.b.format)) observe_operand(ctx, gemm, Operand::B, recipe.b, b_source, b_transpose);

  const ArenaScope scope(ctx.stream.scratch());
  const std::int64_t rows = std::min(kObservedRows, a.matrix.size(0)), cols = b.matrix.size(0);
  const View<float> exact = ctx.stream.scratch().take<float>(rows, cols);
  const View<float> quantized = ctx.stream.scratch().take<float>(rows, cols);
  multiply(ctx, recipe, {a.matrix.rows(0, rows), a.scale}, b, quantized, 0);
  matmul(ctx.stream, {.a_MK = oriented(a_source, a_transpose).rows(0, rows),
                      .b_NK = oriented(b_source, b_transpose),
                      .c_MN = exact});
  const std::vector<float> ours = on_host(ctx.stream.device(), quantized),
                           expected = on_host(ctx.stream.device(), exact);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double e = static_cast<double>(ours[i]) - expected[i];
    error += e * e;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  ctx.observer->on_product(info_, gemm, norm > 0 ? std::sqrt(error / norm) : 0.0);
}

void Linear::observe_operand(Context& ctx, Gemm gemm, Operand operand, const QuantSpec& spec,
                             ConstRealView source, bool transpose) const {
  Arena& scratch = ctx.stream.scratch();
  const ArenaScope scope(scratch);
  const FormatInfo& format = nibble::info(spec.format);
  const std::int64_t rows = source.size(transpose ? 1 : 0), cols = source.size(transpose ? 0 : 1);
  const std::int64_t bytes = format.element_bits == 4 ? (cols + 1) / 2 : cols;
  const View<bf16> values = scratch.take<bf16>(rows, cols);
  const View<std::uint8_t> codes = scratch.take<std::uint8_t>(rows, bytes);
  View<std::uint8_t> scales;
  if (format.block > 0) scales = scratch.take<std::uint8_t>(rows, (cols + format.block - 1) / format.block);
  float* amax = scratch.take<float>(1).data();
  float* scale = scratch.take<float>(1).data();
  quantize(ctx.stream, {.x_RC = source,
                        .spec = spec,
                        .transpose = transpose,
                        .random = random_key(ctx, gemm, operand, source.size(1)),
                        .amax = amax,
                        .scale = scale,
                        .values = values,
                        .codes = codes,
                        .scales = scales});
  ConstRealView before = oriented(source, transpose);
  if (spec.rotation != 0) {
    const View<bf16> rotated = scratch.take<bf16>(rows, (cols + 15) / 16 * 16);
    rotate(ctx.stream, {.x_RC = source, .transpose = transpose, .sign_mask = spec.sign_mask, .out = rotated});
    before = rotated.slice(1, 0, cols);
  }
  QuantStats stats;
  measure_quant(ctx.stream, {.x_RC = before,
                             .values = values,
                             .codes = codes,
                             .scales = scales,
                             .spec = spec,
                             .amax = amax,
                             .scale = scale,
                             .out = &stats});
  ctx.observer->on_operand(info_, gemm, operand, spec, stats);
}

}  // namespace nibble
