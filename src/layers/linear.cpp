// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <algorithm>
#include <cmath>

#include "ops/elementwise/elementwise.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/health/tensor_sums.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_pair.h"
#include "ops/quantize/rotate.h"

namespace nibble {
namespace {

/// Output rows compared with the unquantised product when a step is observed.
constexpr std::int64_t kObservedRows = 16;
/// An operand's two numbers: amax first, its scale this many floats on. cuBLASLt reads scales of FP8 from
/// addresses of 16 bytes alone.
constexpr std::int64_t kScaleAt = 4;

/// 2 where the planted fault has the block scales of one operand read one binade too large.
float planted_scale(const Recipe& recipe, const GemmRecipe& gemm, const LinearInfo& linear) {
  const bool planted = !recipe.scale_binade_layers.empty() && is_quantized(gemm.a.format) &&
                       glob_match(recipe.scale_binade_layers, linear.name);
  return planted ? 2.0f : 1.0f;
}

ConstRealView oriented(ConstRealView source, bool transpose) {
  return transpose ? source.transposed() : source;
}

/// Whether the stored codes themselves are multiplied: FP8 with one scale a tensor, on tensor cores that have
/// it.
bool is_coded(const Context& ctx, const GemmRecipe& recipe) {
  const auto is_fp8 = [](Format f) { return f == Format::Fp8E4M3 || f == Format::Fp8E5M2; };
  return ctx.native_fp8 && is_fp8(recipe.a.format) && is_fp8(recipe.b.format);
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
  const Source x{Gemm::Fprop, Operand::A, plan.fprop.a, x_TK},
      w{Gemm::Fprop, Operand::B, plan.fprop.b, weight_.compute};
  const bool coded = is_coded(ctx, plan.fprop);
  multiply(ctx, plan.fprop, prepare(ctx, x, coded), prepare_weight(ctx, Gemm::Fprop, w.spec, false, coded),
           y_TN, 0, bias_.present() ? bias_.master : View<const float>{});
  observe(ctx, Gemm::Fprop, plan.fprop, x, w);
}

void Linear::backward(Context& ctx, ConstRealView x_TK, ConstRealView dy_TN, RealView dx_TK) {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  const ArenaScope scratch(ctx.stream.scratch());
  const auto [dy, dy_turned] = prepare_gradient(ctx, plan, dy_TN);
  const bool coded = is_coded(ctx, plan.dgrad);
  multiply(ctx, plan.dgrad, dy, prepare_weight(ctx, Gemm::Dgrad, plan.dgrad.b, true, coded), dx_TK, 0);
  observe(ctx, Gemm::Dgrad, plan.dgrad, {Gemm::Dgrad, Operand::A, plan.dgrad.a, dy_TN},
          {Gemm::Dgrad, Operand::B, plan.dgrad.b, weight_.compute, true});

  const Source x{Gemm::Wgrad, Operand::B, plan.wgrad.b, x_TK, true};
  multiply(ctx, plan.wgrad, dy_turned, prepare(ctx, x, is_coded(ctx, plan.wgrad)), weight_.grad, 1);
  observe(ctx, Gemm::Wgrad, plan.wgrad, {Gemm::Wgrad, Operand::A, plan.wgrad.a, dy_TN, true}, x);
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

Linear::Place Linear::take_place(Arena& arena, const Source& s, bool coded) {
  const std::int64_t rows = s.matrix.size(s.transpose ? 1 : 0), cols = s.matrix.size(s.transpose ? 0 : 1);
  Place place;
  if (coded)
    place.codes = arena.take<std::uint8_t>(rows, cols);
  else
    place.values = arena.take<bf16>(rows, cols);
  if (s.spec.tensor_scaling == TensorScaling::Row) place.row_amax = arena.take<float>(rows);
  place.numbers = arena.take<float>(kScaleAt + 1).data();
  return place;
}

Linear::Ready Linear::Place::ready() const {
  // A row-scaled operand's row amaxes take the place of the tensor's scale.
  return {.matrix = values, .scale = numbers + kScaleAt, .row_scale = row_amax, .codes = codes};
}

void Linear::require_finite(Context& ctx, const Source& s, const float* amax) const {
  if (ctx.record != nullptr || s.spec.non_finite != NonFinite::Detect) return;
  const float found = read(ctx.stream.device(), amax);
  if (!std::isfinite(found))
    throw Error(ErrorKind::NonFinite,
                fault_sentence(ctx.step, std::span(&info_, 1), fault_id(info_, s.gemm, s.operand),
                               std::isnan(found) ? "a NaN" : "an infinity"));
}

void Linear::quantize_into(Context& ctx, const Source& s, const Place& place) const {
  quantize(ctx.stream, {.x_RC = s.matrix,
                        .spec = s.spec,
                        .transpose = s.transpose,
                        .random = random_key(ctx, s.gemm, s.operand, s.matrix.size(1)),
                        .amax = place.numbers,
                        .scale = place.numbers + kScaleAt,
                        .values = place.values,
                        .codes = place.codes,
                        .scales = place.scales,
                        .row_amax = place.row_amax,
                        .fault = ctx.record ? &ctx.record->fault : nullptr,
                        .fault_id = fault_id(info_, s.gemm, s.operand)});
  require_finite(ctx, s, place.numbers);
}

Linear::Ready Linear::prepare(Context& ctx, const Source& s, bool coded) const {
  if (!is_quantized(s.spec.format)) return {oriented(s.matrix, s.transpose)};
  const Place place = take_place(ctx.stream.scratch(), s, coded);
  quantize_into(ctx, s, place);
  return place.ready();
}

/// The row copy of dy for dgrad and its transposed copy for wgrad: in one reading of dy where both are
/// quantised.
std::pair<Linear::Ready, Linear::Ready> Linear::prepare_gradient(Context& ctx, const ResolvedLinear& plan,
                                                                 ConstRealView dy_TN) const {
  const Source rows{Gemm::Dgrad, Operand::A, plan.dgrad.a, dy_TN},
      turned{Gemm::Wgrad, Operand::A, plan.wgrad.a, dy_TN, true};
  const bool rows_coded = is_coded(ctx, plan.dgrad), turned_coded = is_coded(ctx, plan.wgrad);
  if (!is_quantized(rows.spec.format) || !is_quantized(turned.spec.format)) {
    const Ready first = prepare(ctx, rows, rows_coded);
    return {first, prepare(ctx, turned, turned_coded)};
  }
  Arena& scratch = ctx.stream.scratch();
  const Place row_place = take_place(scratch, rows, rows_coded);
  const Place turned_place = take_place(scratch, turned, turned_coded);
  const auto copy = [&](const Source& s, const Place& place) -> QuantizePair::Copy {
    return {.spec = s.spec,
            .random = random_key(ctx, s.gemm, s.operand, dy_TN.size(1)),
            .amax = place.numbers,
            .scale = place.numbers + kScaleAt,
            .values = place.values,
            .codes = place.codes,
            .row_amax = place.row_amax,
            .fault_id = fault_id(info_, s.gemm, s.operand)};
  };
  quantize_pair(ctx.stream, {.x_RC = dy_TN,
                             .rows = copy(rows, row_place),
                             .transposed = copy(turned, turned_place),
                             .fault = ctx.record ? &ctx.record->fault : nullptr});
  require_finite(ctx, rows, row_place.numbers);
  require_finite(ctx, turned, turned_place.numbers);
  return {row_place.ready(), turned_place.ready()};
}

Linear::Ready Linear::prepare_weight(Context& ctx, Gemm gemm, const QuantSpec& spec, bool transpose,
                                     bool coded) {
  const ConstRealView w_NK = weight_.compute;
  if (!is_quantized(spec.format)) return {oriented(w_NK, transpose)};
  // A square tile's codes and scales are those of its transpose; codes themselves are not read transposed.
  const bool shared = !coded && spec.tile == Tile::Square && !is_stochastic(spec.rounding) &&
                      spec.rotation == 0 && spec.tensor_scaling == TensorScaling::Tensor;
  const bool own_transpose = transpose && !shared;
  WeightCache& cache = own_transpose ? transposed_copy_ : row_copy_;
  const std::int64_t rows = w_NK.size(own_transpose ? 1 : 0), cols = w_NK.size(own_transpose ? 0 : 1);
  if (cache.elements.data() == nullptr) {
    cache.elements = Buffer(*device_, static_cast<std::size_t>(rows * cols) * sizeof(bf16));
    cache.row_amax = Buffer(*device_, static_cast<std::size_t>(rows) * sizeof(float));
    cache.numbers = Buffer(*device_, (kScaleAt + 1) * sizeof(float));
  }
  Place place{.numbers = cache.numbers.as<float>()};
  if (coded)
    place.codes = View<std::uint8_t>(cache.elements.as<std::uint8_t>(), rows, cols);
  else
    place.values = View<bf16>(cache.elements.as<bf16>(), rows, cols);
  if (spec.tensor_scaling == TensorScaling::Row)
    place.row_amax = View<float>(cache.row_amax.as<float>(), rows);
  if (!cache.filled || cache.version != ctx.weights_version || cache.spec != spec || cache.coded != coded) {
    quantize_into(ctx, {gemm, Operand::B, spec, w_NK, own_transpose}, place);
    cache.filled = true;
    cache.version = ctx.weights_version;
    cache.spec = spec;
    cache.coded = coded;
  }
  Ready ready = place.ready();
  if (!coded) ready.matrix = oriented(place.values, transpose && shared);
  return ready;
}

void Linear::multiply(Context& ctx, const GemmRecipe& recipe, const Ready& a, const Ready& b, RealView out,
                      float beta, View<const float> bias) const {
  if (!a.codes.empty()) {
    matmul_fp8(ctx.stream, {.a_MK = a.codes,
                            .b_NK = b.codes,
                            .a_format = recipe.a.format,
                            .b_format = recipe.b.format,
                            .a_scale = a.scale,
                            .b_scale = b.scale,
                            .c_MN = out,
                            .beta = beta});
    return;
  }
  matmul(ctx.stream, {.a_MK = a.matrix,
                      .b_NK = b.matrix,
                      .c_MN = out,
                      .a_scale = a.scale,
                      .b_scale = b.scale,
                      .inverse_range = planted_scale(ctx.recipe, recipe, info_) *
                                       gemm_inverse_range(recipe.a.format, recipe.b.format),
                      .beta = beta,
                      .bias_N = bias,
                      .a_row_scale_M = a.row_scale,
                      .b_row_scale_N = b.row_scale});
}

void Linear::observe(Context& ctx, Gemm gemm, const GemmRecipe& recipe, const Source& a_source,
                     const Source& b_source) {
  if (ctx.observer == nullptr) return;
  if (!is_quantized(recipe.a.format) && !is_quantized(recipe.b.format)) return;
  const ArenaScope scope(ctx.stream.scratch());
  DifferenceSums* const out = ctx.observer->product(info_, gemm);
  const Ready a = observe_operand(ctx, a_source, out != nullptr);
  const Ready b = observe_operand(ctx, b_source, out != nullptr);
  if (out == nullptr) return;

  const ConstRealView a_exact = oriented(a_source.matrix, a_source.transpose);
  const std::int64_t rows = std::min(kObservedRows, a_exact.size(0)), cols = b.matrix.size(0);
  const std::int64_t first = kObservedRows * observed_stretch(ctx.step, a_exact.size(0) / kObservedRows);
  const View<float> exact = ctx.stream.scratch().take<float>(rows, cols);
  const View<float> quantized = ctx.stream.scratch().take<float>(rows, cols);
  Ready some = a;
  some.matrix = a.matrix.rows(first, rows);
  if (!a.row_scale.empty()) some.row_scale = a.row_scale.rows(first, rows);
  multiply(ctx, recipe, some, b, quantized, 0);
  matmul(ctx.stream, {.a_MK = a_exact.rows(first, rows),
                      .b_NK = oriented(b_source.matrix, b_source.transpose),
                      .c_MN = exact});
  measure_difference(ctx.stream, {.a_RC = quantized, .b_RC = exact, .out = out});
}

/// Measures one operand where that is asked for. What the GEMM would read of it is returned, in scratch
/// memory of the caller's, where `needed`.
Linear::Ready Linear::observe_operand(Context& ctx, const Source& s, bool needed) const {
  if (!is_quantized(s.spec.format)) return {oriented(s.matrix, s.transpose)};
  // The weight is the same in every micro-batch.
  const bool known = s.matrix.data() == weight_.compute.data() && ctx.first_token != 0;
  OperandSums* const out = known ? nullptr : ctx.observer->operand(info_, s.gemm, s.operand, s.spec);
  if (out == nullptr && !needed) return {};
  Arena& scratch = ctx.stream.scratch();
  const QuantizedShape shape = quantized_shape(s.spec, s.matrix.size(0), s.matrix.size(1), s.transpose);
  Place place{.values = scratch.take<bf16>(shape.rows, shape.cols),
              .codes = scratch.take<std::uint8_t>(shape.rows, shape.code_cols),
              .numbers = scratch.take<float>(kScaleAt + 1).data()};
  if (s.spec.tensor_scaling == TensorScaling::Row) place.row_amax = scratch.take<float>(shape.rows);
  if (shape.scale_cols > 0) place.scales = scratch.take<std::uint8_t>(shape.rows, shape.scale_cols);
  quantize_into(ctx, s, place);
  if (out != nullptr) measure(ctx, s, place, *out);
  Ready ready = place.ready();
  ready.codes = {};
  return ready;
}

void Linear::measure(Context& ctx, const Source& s, const Place& place, OperandSums& out) const {
  Arena& scratch = ctx.stream.scratch();
  const ArenaScope scope(scratch);
  ConstRealView before = oriented(s.matrix, s.transpose);
  if (s.spec.rotation != 0) {
    measure_tensor(ctx.stream, {.x_RC = s.matrix, .out = &out.unrotated});
    const View<bf16> rotated = scratch.take<bf16>(before.size(0), (before.size(1) + 15) / 16 * 16);
    rotate(ctx.stream,
           {.x_RC = s.matrix, .transpose = s.transpose, .sign_mask = s.spec.sign_mask, .out = rotated});
    before = rotated.slice(1, 0, before.size(1));
  }
  measure_quant(ctx.stream, {.x_RC = before,
                             .values = place.values,
                             .codes = place.codes,
                             .scales = place.scales,
                             .spec = s.spec,
                             .amax = place.numbers,
                             .scale = place.numbers + kScaleAt,
                             .out = &out.quantised,
                             .row_amax = place.row_amax});
}

}  // namespace nibble
