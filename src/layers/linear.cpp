// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "layers/amax_state.h"
#include "ops/elementwise/elementwise.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/matmul_blocks.h"
#include "ops/gemm/matmul_fp4.h"
#include "ops/gemm/matmul_fp8.h"
#include "ops/gemm/matmul_mxfp8.h"
#include "ops/gemm/matmul_truncating.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_pair.h"
#include "ops/quantize/swizzle_scales.h"
#include "quant/format_names.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

/// In a fault's number, where a GEMM stands: attention behind its qkv linear.
constexpr std::int64_t kAttentionFault = 3;
constexpr std::string_view kAttentionOperands[16] = {"q", "k", "v", "dout", "ds"};

/// What the planted fault multiplies a product by: block scales one binade too large.
float planted_scale(const Recipe& recipe, const GemmRecipe& gemm, const LinearInfo& linear) {
  return reads_planted_scales(recipe, gemm, linear) ? 2.0f : 1.0f;
}

ConstRealView oriented(ConstRealView source, bool transpose) {
  return transpose ? source.transposed() : source;
}

/// Whether b of this GEMM is made of the forward copy (GemmRecipe::requantize).
bool is_requantized(const ResolvedLinear& plan, Gemm gemm) {
  if (gemm == Gemm::Fprop || !plan.gemm(gemm).requantize || !is_quantized(plan.gemm(gemm).b.format))
    return false;
  return is_quantized(plan.spec(Gemm::Fprop, gemm == Gemm::Dgrad ? Operand::B : Operand::A).format);
}

/// Whether the amax that the quantiser finds is that of the matrix as it lies, a NaN in it included.
bool finds_amax_of_matrix(const QuantSpec& spec) {
  return is_quantized(spec.format) && spec.rotation == 0 && spec.tensor_scaling != TensorScaling::Row &&
         spec.non_finite == NonFinite::Detect;
}

/// Whether the copies of one matrix under these specs can be made together: each is quantised under its own
/// amax, or none, and has no FP32 block scales.
bool is_pair(const QuantSpec& rows, const QuantSpec& turned) {
  const auto alone = [](const QuantSpec& spec) {
    return !is_quantized(spec.format) || has_amax_rule(spec.tensor_scaling) || has_block_scales(spec);
  };
  return !alone(rows) && !alone(turned);
}

/// Bytes of a row of the elements: values, or where they are read themselves the codes.
std::int64_t row_bytes(const QuantizedShape& shape, Product product) {
  return reads_codes(product) ? shape.code_cols : shape.cols * static_cast<std::int64_t>(sizeof(bf16));
}

}  // namespace

std::int64_t attention_fault_id(const LinearInfo& qkv, int operand) {
  return (static_cast<std::int64_t>(qkv.position) << 8) | (kAttentionFault << 4) | operand;
}

std::int64_t fault_id(const LinearInfo& linear, Gemm gemm, Operand operand) {
  return (static_cast<std::int64_t>(linear.position) << 8) | (static_cast<std::int64_t>(gemm) << 4) |
         static_cast<std::int64_t>(operand);
}

std::string fault_sentence(std::int64_t step, std::span<const LinearInfo> linears, std::int64_t fault,
                           std::string_view what) {
  const auto gemm = static_cast<Gemm>((fault >> 4) & 15);
  const auto operand = static_cast<Operand>(fault & 15);
  const bool attention = (fault >> 4 & 15) == kAttentionFault;
  const auto it = std::find_if(linears.begin(), linears.end(),
                               [&](const LinearInfo& l) { return l.position == fault >> 8; });
  return fmt::format(
      "step {}: {}: the {} operand {} holds {}; the 4- and 8-bit formats would hide it. Resume from the last "
      "checkpoint with a lower learning rate, or replay the step in bf16 to see whether the recipe is at "
      "fault",
      step, it != linears.end() ? it->name : "a linear", attention ? "attention" : name(gemm),
      attention ? kAttentionOperands[fault & 15] : operand_name(gemm, operand), what);
}

Linear::Linear(LinearInfo info, Device& device, Param weight, Param bias)
    : info_(std::move(info)), device_(&device), weight_(weight), bias_(bias) {}

Product Linear::product_of(const Context& ctx, const ResolvedLinear& plan, Gemm gemm,
                           std::int64_t tokens) const {
  return choose_product(ctx.recipe, info_, plan, gemm, tokens, ctx.native).product;
}

float* Linear::room_for_amax_of_x(const Context& ctx, Arena& arena) const {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  const bool fprop = finds_amax_of_matrix(plan.fprop.a) && !is_centred(plan.fprop, Gemm::Fprop);
  const bool wgrad = ctx.training && finds_amax_of_matrix(plan.wgrad.b) &&
                     !is_centred(plan.wgrad, Gemm::Wgrad) && !is_requantized(plan, Gemm::Wgrad);
  return fprop || wgrad ? arena.take<float>(1).data() : nullptr;
}

/// dgrad and wgrad look for their amaxes in one reading of dy: it is saved where neither needs it.
float* Linear::room_for_amax_of_dy(const Context& ctx, Arena& arena) const {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  bool quantises = false, knows = true;
  for (const Gemm gemm : {Gemm::Dgrad, Gemm::Wgrad}) {
    const QuantSpec& spec = plan.gemm(gemm).a;
    if (!is_quantized(spec.format)) continue;
    quantises = true;
    knows = knows && finds_amax_of_matrix(spec) && !is_centred(plan.gemm(gemm), gemm);
  }
  return quantises && knows ? arena.take<float>(1).data() : nullptr;
}

/// What is computed again is not kept in another form, and an observer is shown x itself in backward.
bool Linear::reads_x_once(const Context& ctx, const ResolvedLinear& plan) const {
  return ctx.training && !ctx.recomputes() && ctx.observer == nullptr &&
         is_pair(plan.fprop.a, plan.wgrad.b) && !is_centred(plan.fprop, Gemm::Fprop) &&
         !is_centred(plan.wgrad, Gemm::Wgrad) && !is_requantized(plan, Gemm::Wgrad);
}

bool Linear::keeps_x(const Context& ctx) const {
  return ctx.training && !ctx.recomputes() && !reads_x_once(ctx, resolve(ctx.recipe, info_, ctx.step));
}

Arena& Linear::arena_of_x(const Context& ctx) const {
  return ctx.training && !keeps_x(ctx) ? ctx.stream.scratch() : ctx.arena;
}

void Linear::forward(Context& ctx, WithAmax x_TK, RealView y_TN) {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  const ArenaScope scratch(ctx.stream.scratch());
  const bool centres = is_centred(plan.fprop, Gemm::Fprop);
  View<const float> bias = bias_.present() ? View<const float>(bias_.master) : View<const float>{};
  WithAmax x_in = x_TK;
  if (centres) {
    const Centred x = centred(ctx, ones_.row(*device_, x_TK.size(0)), x_TK);
    bias = mean_product(ctx, x, weight_.compute, bias);
    x_in = x.matrix;
  }
  const Source x{Gemm::Fprop, Operand::A, plan.fprop.a, x_in},
      w{Gemm::Fprop, Operand::B, plan.fprop.b, WithAmax(weight_.compute, weight_.amax)};
  const Product product = product_of(ctx, plan, Gemm::Fprop, x_TK.size(0));
  Ready a;
  kept_x_.reset();
  if (reads_x_once(ctx, plan)) {
    const Source turned{Gemm::Wgrad, Operand::B, plan.wgrad.b, x_TK, true};
    const Product wgrad = product_of(ctx, plan, Gemm::Wgrad, x_TK.size(0));
    std::tie(a, kept_x_) = prepare_pair(ctx, x, turned, product, wgrad, ctx.arena);
  } else {
    a = prepare(ctx, x, product, ctx.stream.scratch());
  }
  multiply(ctx, product, Gemm::Fprop, plan.fprop, a, prepare_weight(ctx, plan, Gemm::Fprop, product), y_TN, 0,
           bias);
  observe(ctx, Gemm::Fprop, plan.fprop, x, w);
}

void Linear::backward(Context& ctx, WithAmax x_TK, WithAmax dy_TN, RealView dx_TK) {
  const ResolvedLinear plan = resolve(ctx.recipe, info_, ctx.step);
  const ArenaScope scratch(ctx.stream.scratch());
  const bool dgrad_centres = is_centred(plan.dgrad, Gemm::Dgrad),
             wgrad_centres = is_centred(plan.wgrad, Gemm::Wgrad);
  View<const bf16> ones;
  Centred dy_centred, x_centred;
  if (dgrad_centres || wgrad_centres) {
    ones = ones_.row(*device_, dy_TN.size(0));
    dy_centred = centred(ctx, ones, dy_TN);
  }
  const Source rows{Gemm::Dgrad, Operand::A, plan.dgrad.a,
                    dgrad_centres ? WithAmax(dy_centred.matrix) : dy_TN},
      turned{Gemm::Wgrad, Operand::A, plan.wgrad.a, wgrad_centres ? WithAmax(dy_centred.matrix) : dy_TN,
             true};
  const Product dgrad = product_of(ctx, plan, Gemm::Dgrad, dy_TN.size(0)),
                wgrad = product_of(ctx, plan, Gemm::Wgrad, dy_TN.size(0));
  Arena& temporaries = ctx.stream.scratch();
  const auto [dy, dy_turned] = prepare_pair(ctx, rows, turned, dgrad, wgrad, temporaries);
  View<const float> dx_bias;
  if (dgrad_centres) dx_bias = mean_product(ctx, dy_centred, weight_.compute.transposed());
  multiply(ctx, dgrad, Gemm::Dgrad, plan.dgrad, dy, prepare_weight(ctx, plan, Gemm::Dgrad, dgrad), dx_TK, 0,
           dx_bias);
  if (ctx.observer != nullptr) {
    observe(ctx, Gemm::Dgrad, plan.dgrad, rows,
            {Gemm::Dgrad, Operand::B, plan.dgrad.b,
             backward_source(ctx, plan, Gemm::Dgrad, WithAmax(weight_.compute, weight_.amax)), true,
             weight_.compute});
  }

  WithAmax x_in = backward_source(ctx, plan, Gemm::Wgrad, x_TK);
  if (wgrad_centres) {
    x_centred = centred(ctx, ones, x_TK);
    x_in = x_centred.matrix;
  }
  const Source x{Gemm::Wgrad, Operand::B, plan.wgrad.b, x_in, true, wgrad_centres ? x_in : x_TK};
  const std::optional<Ready> kept_x = std::exchange(kept_x_, std::nullopt);
  multiply(ctx, wgrad, Gemm::Wgrad, plan.wgrad, dy_turned,
           kept_x ? *kept_x : prepare(ctx, x, wgrad, temporaries), weight_.grad, ctx.first_wgrad ? 0 : 1);
  if (wgrad_centres) add_mean_products(ctx, ones, dy_TN, dy_centred, x_centred, weight_.grad);
  observe(ctx, Gemm::Wgrad, plan.wgrad, turned, x);
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

ConstRealView Linear::Source::exact() const {
  return oriented(unquantised.empty() ? ConstRealView(matrix) : unquantised, transpose);
}

ConstRealView Linear::Source::as_read() const { return oriented(matrix, transpose); }

const float* Linear::Source::known_amax() const { return finds_amax_of_matrix(spec) ? matrix.amax : nullptr; }

QuantizedShape Linear::Source::shape() const {
  return quantized_shape(for_quantiser(spec), matrix.size(0), matrix.size(1), transpose);
}

Linear::Place Linear::take_place(Arena& arena, Arena& scratch, const Source& s, Product product) {
  // A rotation pads the reduction axis of both operands alike.
  const QuantizedShape shape = s.shape();
  const bool coded = reads_codes(product);
  Place place;
  if (coded || product == Product::ExactBlocks) {
    place.codes = arena.take<std::uint8_t>(shape.rows, shape.code_cols);
    Arena& of_scales = reads_swizzled_scales(product) ? scratch : arena;
    if (shape.scale_cols > 0) place.scales = of_scales.take<std::uint8_t>(shape.rows, shape.scale_cols);
  }
  if (reads_swizzled_scales(product))
    place.swizzled = arena.take<std::uint8_t>(swizzled_size(shape.rows, shape.scale_cols));
  if (!coded) place.values = arena.take<bf16>(shape.rows, shape.cols);
  if (s.spec.tensor_scaling == TensorScaling::Row) place.row_amax = arena.take<float>(shape.rows);
  place.numbers = arena.take<float>(kScaleAt + 1).data();
  return place;
}

Linear::Place Linear::take_all(Arena& arena, const Source& s, bool values) {
  const QuantizedShape shape = s.shape();
  Place place;
  if (values) place.values = arena.take<bf16>(shape.rows, shape.cols);
  place.codes = arena.take<std::uint8_t>(shape.rows, shape.code_cols);
  if (shape.scale_cols > 0) place.scales = arena.take<std::uint8_t>(shape.rows, shape.scale_cols);
  if (s.spec.tensor_scaling == TensorScaling::Row) place.row_amax = arena.take<float>(shape.rows);
  place.numbers = arena.take<float>(kScaleAt + 1).data();
  return place;
}

Linear::Ready Linear::Place::ready() const {
  // A row-scaled operand's row amaxes take the place of the tensor's scale.
  // Codes beside values were made for the scales' sake: a quantiser writes both together.
  return {.matrix = values,
          .scale = numbers + kScaleAt,
          .row_scale = row_amax,
          .codes = values.empty() ? codes : View<std::uint8_t>{},
          .scales = swizzled.empty() ? scales : swizzled};
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
  Quantize q{.x_RC = s.matrix,
             .spec = for_quantiser(s.spec),
             .transpose = s.transpose,
             .random = random_key(ctx, s.gemm, s.operand, s.matrix.size(1)),
             .amax_given = s.known_amax(),
             .amax = place.numbers,
             .scale = place.numbers + kScaleAt,
             .fault = ctx.record ? &ctx.record->fault : nullptr,
             .fault_id = fault_id(info_, s.gemm, s.operand)};
  if (has_amax_rule(s.spec.tensor_scaling)) {
    if (ctx.amaxes == nullptr)
      fail("{}: {} needs amaxes of earlier steps, and this pass has none", info_.name,
           arithmetic_name(s.spec));
    quantize(ctx.stream, q);  // finds its own amax, or takes over the known one, and nothing else
    require_finite(ctx, s, place.numbers);
    q.amax_given =
        ctx.amaxes->choose(ctx.stream, info_, s.gemm, s.operand, s.spec, place.numbers, ctx.step, ctx.record);
  }
  q.values = place.values;
  q.codes = place.codes;
  q.scales = place.scales;
  q.row_amax = place.row_amax;
  quantize(ctx.stream, q);
  swizzle(ctx.stream, place);
  require_finite(ctx, s, place.numbers);
}

void Linear::swizzle(Stream& stream, const Place& place) {
  if (!place.swizzled.empty()) swizzle_scales(stream, {.scales_RB = place.scales, .out = place.swizzled});
}

Linear::Ready Linear::prepare(Context& ctx, const Source& s, Product product, Arena& arena) const {
  if (!is_quantized(s.spec.format)) return {s.as_read()};
  const Place place = take_place(arena, ctx.stream.scratch(), s, product);
  quantize_into(ctx, s, place);
  return place.ready();
}

std::pair<Linear::Ready, Linear::Ready> Linear::prepare_pair(Context& ctx, const Source& rows,
                                                             const Source& turned, Product rows_product,
                                                             Product turned_product, Arena& of_turned) const {
  Arena& scratch = ctx.stream.scratch();
  if (!is_pair(rows.spec, turned.spec) || rows.matrix.data() != turned.matrix.data()) {
    const Ready first = prepare(ctx, rows, rows_product, scratch);
    return {first, prepare(ctx, turned, turned_product, of_turned)};
  }
  const ConstRealView x_TF = rows.matrix;
  const Place row_place = take_place(scratch, scratch, rows, rows_product);
  const Place turned_place = take_place(of_turned, scratch, turned, turned_product);
  const auto copy = [&](const Source& s, const Place& place) -> QuantizePair::Copy {
    return {.spec = s.spec,
            .random = random_key(ctx, s.gemm, s.operand, x_TF.size(1)),
            .amax_given = s.known_amax(),
            .amax = place.numbers,
            .scale = place.numbers + kScaleAt,
            .values = place.values,
            .codes = place.codes,
            .scales = place.scales,
            .row_amax = place.row_amax,
            .fault_id = fault_id(info_, s.gemm, s.operand)};
  };
  quantize_pair(ctx.stream, {.x_RC = x_TF,
                             .rows = copy(rows, row_place),
                             .transposed = copy(turned, turned_place),
                             .fault = ctx.record ? &ctx.record->fault : nullptr});
  swizzle(ctx.stream, row_place);
  swizzle(ctx.stream, turned_place);
  require_finite(ctx, rows, row_place.numbers);
  require_finite(ctx, turned, turned_place.numbers);
  return {row_place.ready(), turned_place.ready()};
}

Linear::Place Linear::WeightCache::take_place(Device& device, const QuantSpec& of,
                                              const QuantizedShape& shape, Product read_by) {
  const auto room = [&](Buffer& buffer, std::int64_t bytes) {
    if (buffer.bytes() >= static_cast<std::size_t>(bytes)) return buffer.as<std::uint8_t>();
    buffer = Buffer(device, static_cast<std::size_t>(bytes));
    filled = false;
    return buffer.as<std::uint8_t>();
  };
  const std::int64_t rows = shape.rows;
  std::uint8_t* const bytes = room(elements, rows * row_bytes(shape, read_by));
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  Place place;
  place.numbers = reinterpret_cast<float*>(room(numbers, (kScaleAt + 1) * kFloat));
  if (reads_codes(read_by))
    place.codes = View<std::uint8_t>(bytes, rows, shape.code_cols);
  else
    place.values = View<bf16>(reinterpret_cast<bf16*>(bytes), rows, shape.cols);
  if (of.tensor_scaling == TensorScaling::Row)
    place.row_amax = View<float>(reinterpret_cast<float*>(room(row_amax, rows * kFloat)), rows);
  if (reads_swizzled_scales(read_by)) {
    const std::int64_t size = swizzled_size(rows, shape.scale_cols);
    place.swizzled = View<std::uint8_t>(room(scales, size), size);
  } else if ((reads_codes(read_by) || read_by == Product::ExactBlocks) && shape.scale_cols > 0) {
    place.scales = View<std::uint8_t>(room(scales, rows * shape.scale_cols), rows, shape.scale_cols);
  }
  if (read_by == Product::ExactBlocks)  // a quantiser writes scales and codes together
    place.codes = View<std::uint8_t>(room(codes, rows * shape.code_cols), rows, shape.code_cols);
  return place;
}

View<float> Linear::decoded(Context& ctx, const Source& s) const {
  Arena& scratch = ctx.stream.scratch();
  const QuantizedShape shape = s.shape();
  const View<float> out = scratch.take<float>(shape.rows, shape.cols);
  const ArenaScope scope(scratch);
  const Place place = take_all(scratch, s, false);
  quantize_into(ctx, s, place);
  dequantize(ctx.stream, {.format = s.spec.format,
                          .codes = place.codes,
                          .scales = place.scales,
                          .amax = place.numbers,
                          .scale = place.numbers + kScaleAt,
                          .out_RC = out,
                          .row_amax = place.row_amax,
                          .scale_bound = s.spec.scale_bound,
                          .amax_factor = amax_factor(s.spec)});
  return out;
}

WithAmax Linear::backward_source(Context& ctx, const ResolvedLinear& plan, Gemm gemm, WithAmax matrix) const {
  if (!is_requantized(plan, gemm)) return matrix;
  const Operand operand = gemm == Gemm::Dgrad ? Operand::B : Operand::A;
  return View<const float>(decoded(ctx, {Gemm::Fprop, operand, plan.spec(Gemm::Fprop, operand), matrix}));
}

Linear::Ready Linear::prepare_weight(Context& ctx, const ResolvedLinear& plan, Gemm gemm, Product product) {
  const WithAmax w_NK(weight_.compute, weight_.amax);
  const QuantSpec& spec = plan.gemm(gemm).b;
  const bool transpose = gemm == Gemm::Dgrad;
  if (!is_quantized(spec.format)) return {oriented(w_NK, transpose)};
  // A square tile's codes and scales are those of its transpose. Codes themselves are not read transposed,
  // and where fprop reads them its copy has no values.
  const bool shared = !reads_codes(product) && !(row_copy_.filled && reads_codes(row_copy_.product)) &&
                      spec.tile == Tile::Square && !is_stochastic(spec.rounding) && spec.rotation == 0 &&
                      spec.tensor_scaling != TensorScaling::Row && !has_block_scales(spec);
  const bool own_transpose = transpose && !shared;
  WeightCache& cache = own_transpose ? transposed_copy_ : row_copy_;
  const QuantizedShape shape =
      quantized_shape(for_quantiser(spec), w_NK.size(0), w_NK.size(1), own_transpose);
  Place place = cache.take_place(*device_, spec, shape, product);
  const QuantSpec source = is_requantized(plan, gemm) ? plan.fprop.b : QuantSpec{};
  const bool same_signs =
      spec.rotation == 0 || spec.signs != RotationSigns::Redrawn || cache.step == ctx.step;
  if (!cache.filled || cache.version != ctx.weights_version || !same_signs || cache.spec != spec ||
      cache.source != source || cache.product != product) {
    Arena& scratch = ctx.stream.scratch();
    const ArenaScope scope(scratch);
    const WithAmax from_NK = backward_source(ctx, plan, gemm, w_NK);
    if (!place.swizzled.empty()) place.scales = scratch.take<std::uint8_t>(shape.rows, shape.scale_cols);
    quantize_into(ctx, {gemm, Operand::B, spec, from_NK, own_transpose}, place);
    cache.filled = true;
    cache.version = ctx.weights_version;
    cache.step = ctx.step;
    cache.spec = spec;
    cache.source = source;
    cache.product = product;
  }
  Ready ready = place.ready();
  if (!reads_codes(product)) ready.matrix = oriented(place.values, transpose && shared);
  return ready;
}

void Linear::multiply(Context& ctx, Product product, Gemm gemm, const GemmRecipe& recipe, const Ready& a,
                      const Ready& b, RealView out, float beta, View<const float> bias) const {
  switch (product) {
    case Product::Exact:
    case Product::ExactBlocks:
      return multiply_exact(ctx, product, recipe, a, b, out, beta, bias);
    case Product::Truncating:
      return matmul_truncating(ctx.stream,
                               {.format = recipe.a.format,
                                .a_codes = a.codes,
                                .b_codes = b.codes,
                                .a_scales = a.scales,
                                .b_scales = b.scales,
                                .c_MN = out,
                                .a_scale = a.scale,
                                .b_scale = b.scale,
                                .inverse_range = planted_scale(ctx.recipe, recipe, info_) *
                                                 gemm_inverse_range(recipe.a.format, recipe.b.format),
                                .beta = beta,
                                .bias_N = bias,
                                .a_row_scale_M = a.row_scale,
                                .b_row_scale_N = b.row_scale});
    case Product::Fp8:
      return matmul_fp8(ctx.stream, {.a_MK = a.codes,
                                     .b_NK = b.codes,
                                     .a_format = recipe.a.format,
                                     .b_format = recipe.b.format,
                                     .a_scale = a.scale,
                                     .b_scale = b.scale,
                                     .c_MN = out,
                                     .beta = beta,
                                     .fast_accumulation = gemm == Gemm::Fprop,  // as [TE]
                                     .bias_N = bias});
    case Product::Fp4:
      return matmul_fp4(ctx.stream, {.a_codes = a.codes,
                                     .b_codes = b.codes,
                                     .a_scales = a.scales,
                                     .b_scales = b.scales,
                                     .a_amax = a.scale,
                                     .b_amax = b.scale,
                                     .c_MN = out,
                                     .beta = beta,
                                     .bias_N = bias});
    case Product::Mxfp8:
      return matmul_mxfp8(ctx.stream, {.a_codes = a.codes,
                                       .b_codes = b.codes,
                                       .a_scales = a.scales,
                                       .b_scales = b.scales,
                                       .a_format = recipe.a.format,
                                       .b_format = recipe.b.format,
                                       .c_MN = out,
                                       .beta = beta,
                                       .bias_N = bias});
  }
}

void Linear::multiply_exact(Context& ctx, Product product, const GemmRecipe& recipe, const Ready& a,
                            const Ready& b, RealView out, float beta, View<const float> bias) const {
  const float planted = planted_scale(ctx.recipe, recipe, info_);
  if (product == Product::ExactBlocks) {
    const auto scales = [](const Ready& x) {
      return View<const float>(reinterpret_cast<const float*>(x.scales.data()),
                               Layout::contiguous(x.scales.size(0), x.scales.size(1) / 4));
    };
    return matmul_blocks(ctx.stream, {.a_MK = a.matrix.as<bf16>(),
                                      .b_NK = b.matrix.as<bf16>(),
                                      .a_scale_MI = scales(a),
                                      .b_scale_NI = scales(b),
                                      .c_MN = out,
                                      .factor = planted,
                                      .beta = beta,
                                      .bias_N = bias});
  }
  matmul(ctx.stream, {.a_MK = a.matrix,
                      .b_NK = b.matrix,
                      .c_MN = out,
                      .a_scale = a.scale,
                      .b_scale = b.scale,
                      .inverse_range = planted * gemm_inverse_range(recipe.a.format, recipe.b.format),
                      .beta = beta,
                      .bias_N = bias,
                      .a_row_scale_M = a.row_scale,
                      .b_row_scale_N = b.row_scale});
}

}  // namespace nibble
