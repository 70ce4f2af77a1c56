// SPDX-License-Identifier: Apache-2.0
// What an observer is told of the operands and products of a linear.
#include <algorithm>

#include "layers/amax_state.h"
#include "layers/linear.h"
#include "ops/gemm/gemm.h"
#include "ops/health/tensor_sums.h"
#include "ops/quantize/rotate.h"

namespace nibble {
namespace {

/// Output rows compared with the unquantised product when a step is observed.
constexpr std::int64_t kObservedRows = 16;

}  // namespace

void Linear::observe(Context& ctx, Gemm gemm, const GemmRecipe& recipe, const Source& a_source,
                     const Source& b_source) {
  if (ctx.observer == nullptr) return;
  if (!is_quantized(recipe.a.format) && !is_quantized(recipe.b.format)) return;
  const ArenaScope scope(ctx.stream.scratch());
  DifferenceSums* const out = ctx.observer->product(info_, gemm);
  const Ready a = observe_operand(ctx, a_source, out != nullptr);
  const Ready b = observe_operand(ctx, b_source, out != nullptr);
  if (out == nullptr) return;

  const ConstRealView a_exact = a_source.exact();
  const std::int64_t rows = std::min(kObservedRows, a_exact.size(0)), cols = b.matrix.size(0);
  const std::int64_t first = kObservedRows * observed_stretch(ctx.step, a_exact.size(0) / kObservedRows);
  const View<float> exact = ctx.stream.scratch().take<float>(rows, cols);
  const View<float> quantized = ctx.stream.scratch().take<float>(rows, cols);
  Ready some = a;
  some.matrix = a.matrix.rows(first, rows);
  if (!a.row_scale.empty()) some.row_scale = a.row_scale.rows(first, rows);
  if (!a.scales.empty()) some.scales = a.scales.rows(first, rows);
  multiply_exact(ctx, has_block_scales(recipe.a) ? Product::ExactBlocks : Product::Exact, recipe, some, b,
                 quantized, 0, {});
  matmul(ctx.stream, {.a_MK = a_exact.rows(first, rows), .b_NK = b_source.exact(), .c_MN = exact});
  measure_difference(ctx.stream, {.a_RC = quantized, .b_RC = exact, .out = out});
}

/// Measures one operand where that is asked for. What the GEMM would read of it is returned, in scratch
/// memory of the caller's, where `needed`.
Linear::Ready Linear::observe_operand(Context& ctx, const Source& s, bool needed) const {
  if (!is_quantized(s.spec.format)) return {s.as_read()};
  // The weight, and under `requantize` its decoded forward copy, is the same in every micro-batch.
  const bool known = s.gemm != Gemm::Wgrad && s.operand == Operand::B && ctx.first_token != 0;
  OperandSums* const out = known ? nullptr : ctx.observer->operand(info_, s.gemm, s.operand, s.spec);
  if (out == nullptr && !needed) return {};
  const Place place = take_all(ctx.stream.scratch(), s, true);
  quantize_into(ctx, s, place);
  if (out != nullptr) measure(ctx, s, place, *out);
  Ready ready = place.ready();
  if (!has_block_scales(s.spec)) ready.scales = {};
  return ready;
}

void Linear::measure(Context& ctx, const Source& s, const Place& place, OperandSums& out) const {
  Arena& scratch = ctx.stream.scratch();
  const ArenaScope scope(scratch);
  ConstRealView before = s.as_read();
  if (s.spec.rotation != 0) {
    measure_tensor(ctx.stream, {.x_RC = s.matrix, .out = &out.unrotated});
    const QuantizedShape shape =
        quantized_shape(for_quantiser(s.spec), s.matrix.size(0), s.matrix.size(1), s.transpose);
    const View<bf16> rotated = scratch.take<bf16>(shape.rows, shape.cols);
    rotate(ctx.stream, rotation_of(s.spec, s.matrix, s.transpose,
                                   random_key(ctx, s.gemm, s.operand, s.matrix.size(1)), rotated));
    before = rotated.slice(1, 0, before.size(1));
  }
  measure_quant(ctx.stream, {.x_RC = before,
                             .values = place.values,
                             .codes = place.codes,
                             .scales = place.scales,
                             .spec = for_quantiser(s.spec),
                             .amax = place.numbers,
                             .scale = place.numbers + kScaleAt,
                             .out = &out.quantised,
                             .row_amax = place.row_amax});
}

}  // namespace nibble
