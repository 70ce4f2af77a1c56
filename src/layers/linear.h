// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backend/device.h"
#include "layers/context.h"
#include "layers/token_mean.h"
#include "layers/with_amax.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"
#include "recipe/product.h"

namespace nibble {

/// y = x w^T (+ bias), and the only place where a recipe meets a GEMM:
///   fprop  y  = Q(x)    Q(w)^T      [T, N], leaves in the activations' type
///   dgrad  dx = Q(dy)   Q(w^T)^T    [T, K], leaves in the activations' type
///   wgrad  dw += Q(dy^T) Q(x^T)^T   [N, K], added in FP32 into the main gradient
/// Each operand is quantised along the reduction axis as `resolve()` says for this layer, GEMM, operand and
/// step, and multiplied as `choose_product()` says: as exact BF16 numbers, or where ctx.native has the format
/// as they are stored. In a base format (BF16, FP32) Q is the identity and the transposes are views. The bias
/// gradient is the plain sum of the unquantised dy.
///
/// An operand's amax is taken from whoever wrote the operand where that is the number that the quantiser
/// would find, and a pass over the operand is saved: where it is quantised as it lies (not rotated, centred
/// or made of a forward copy), under the amax of the whole tensor, and a NaN counts. A weight's comes with it
/// (Param::amax).
///
/// x is read once for its copies of fprop and wgrad where both are quantised from it as it lies, under their
/// own amaxes and without FP32 block scales: forward makes both, and the one for wgrad is kept for backward
/// in the place of x. A step that is observed or computes x again makes that one in backward. The same bits.
///
/// The weight is quantised once a weights_version. A 16x16-tiled weight serves dgrad as a transposed view,
/// since both orientations share codes and scales; codes that are multiplied have a transposed copy of their
/// own. What an observer is told is of exact BF16 operands, however the step multiplies.
///
/// A NaN or an infinity in an operand is found before the cast hides it: it is noted in ctx.record, or
/// without one  Throws  Error{NonFinite} with step, layer, GEMM and operand
class Linear {
 public:
  Linear(LinearInfo info, Device& device, Param weight, Param bias = {});

  const LinearInfo& info() const { return info_; }

  void forward(Context& ctx, WithAmax x_TK, RealView y_TN);

  /// x_TK is what forward had, in a context that asks for the same; not read where forward need not keep it.
  /// Overwrites dx_TK.
  void backward(Context& ctx, WithAmax x_TK, WithAmax dy_TN, RealView dx_TK);

  /// Whether what forward reads of x must stay until backward: nobody computes it again, nor has forward made
  /// the copy for wgrad of it.
  bool keeps_x(const Context& ctx) const;
  /// Where x that nobody else reads in backward is taken from: ctx.arena, or where it need not be kept
  /// scratch of the caller's ArenaScope on ctx.stream.scratch().
  Arena& arena_of_x(const Context& ctx) const;

  /// Room in `arena` for the amax of x or of dy, where knowing it saves this step a pass over x or dy; null
  /// where it does not, and whoever writes the matrix need not look for it.
  float* room_for_amax_of_x(const Context& ctx, Arena& arena) const;
  float* room_for_amax_of_dy(const Context& ctx, Arena& arena) const;

 private:
  /// An operand's two numbers: amax first, its scale this many floats on. cuBLASLt reads scales of FP8 from
  /// addresses of 16 bytes alone.
  static constexpr std::int64_t kScaleAt = 4;

  /// One operand, ready for the GEMM: a matrix, or codes that are multiplied as they are.
  struct Ready {
    ConstRealView matrix;
    const float* scale = nullptr;
    View<const float> row_scale;
    View<const std::uint8_t> codes,
        scales;  ///< scales: of the codes, as the product reads them, or FP32 ones beside the matrix
  };
  /// Memory for one operand's quantised form.
  struct Place {
    View<bf16> values;
    View<std::uint8_t> codes, scales;
    View<std::uint8_t> swizzled;  ///< the scales as tensor cores read them; empty: nobody does
    View<float> row_amax;
    float* numbers = nullptr;  ///< amax, scale
    Ready ready() const;
  };
  /// A quantised weight kept across micro-batches.
  struct WeightCache {
    Buffer elements, scales, codes;  ///< `codes`: beside values that are not read without them
    Buffer row_amax, numbers;
    std::uint64_t version = 0;
    std::int64_t step = 0;   ///< that redrawn signs belong to
    QuantSpec spec, source;  ///< `source`: of the forward copy that it is made of; BF16: of the weight itself
    Product product = Product::Exact;
    bool filled = false;

    /// Room for what `product` reads of the copy. It is not filled any more where room had to be made.
    Place take_place(Device& device, const QuantSpec& spec, const QuantizedShape& shape, Product product);
  };
  /// One operand of one GEMM, before it is quantised.
  struct Source {
    Gemm gemm;
    Operand operand;
    const QuantSpec& spec;
    WithAmax matrix;
    bool transpose = false;
    ConstRealView unquantised{};  ///< what `matrix` is the decoded forward copy of; empty: it is none
    /// The matrix in the GEMM's orientation, and what it was before any quantiser.
    ConstRealView as_read() const;
    ConstRealView exact() const;
    QuantizedShape shape() const;
    /// What its quantiser would find, where that is known already; null: it must look.
    const float* known_amax() const;
  };

  bool reads_x_once(const Context& ctx, const ResolvedLinear& plan) const;
  /// What the product reads, in `arena`, and scales that are only swizzled, in `scratch`; and every output
  /// that the format has, `values` where wanted.
  static Place take_place(Arena& arena, Arena& scratch, const Source& source, Product product);
  static Place take_all(Arena& arena, const Source& source, bool values);
  Product product_of(const Context& ctx, const ResolvedLinear& plan, Gemm gemm, std::int64_t tokens) const;
  /// The operand is taken from `arena`.
  Ready prepare(Context& ctx, const Source& source, Product product, Arena& arena) const;
  /// The row copy and the transposed copy of x or dy that two GEMMs read, in one reading where that can be.
  std::pair<Ready, Ready> prepare_pair(Context& ctx, const Source& rows, const Source& turned,
                                       Product rows_product, Product turned_product, Arena& of_turned) const;
  Ready prepare_weight(Context& ctx, const ResolvedLinear& plan, Gemm gemm, Product product);
  /// The source of b of a backward GEMM: x or w itself, or under `requantize` the forward copy, decoded.
  WithAmax backward_source(Context& ctx, const ResolvedLinear& plan, Gemm gemm, WithAmax matrix) const;
  View<float> decoded(Context& ctx, const Source& source) const;
  void quantize_into(Context& ctx, const Source& source, const Place& place) const;
  static void swizzle(Stream& stream, const Place& place);
  void require_finite(Context& ctx, const Source& source, const float* amax) const;
  void multiply(Context& ctx, Product product, Gemm gemm, const GemmRecipe& recipe, const Ready& a,
                const Ready& b, RealView out, float beta, View<const float> bias = {}) const;
  void multiply_exact(Context& ctx, Product product, const GemmRecipe& recipe, const Ready& a, const Ready& b,
                      RealView out, float beta, View<const float> bias) const;
  void observe(Context& ctx, Gemm gemm, const GemmRecipe& recipe, const Source& a_source,
               const Source& b_source);
  Ready observe_operand(Context& ctx, const Source& source, bool needed) const;
  void measure(Context& ctx, const Source& source, const Place& place, OperandSums& out) const;
  RandomKey random_key(const Context& ctx, Gemm gemm, Operand operand, std::int64_t features) const;

  LinearInfo info_;
  Device* device_;
  Param weight_, bias_;
  WeightCache row_copy_, transposed_copy_;
  Ones ones_;                    ///< of recipes that take out means
  std::optional<Ready> kept_x_;  ///< between forward and backward: x for wgrad, in ctx.arena
};

/// What StepRecord::fault names: position of the linear, GEMM and operand in one number, and the sentence for
/// it.
std::int64_t fault_id(const LinearInfo& linear, Gemm gemm, Operand operand);
/// The same of an operand of attention behind its linear: 0 to 4 for q, k, v, dout, ds.
std::int64_t attention_fault_id(const LinearInfo& qkv, int operand);
std::string fault_sentence(std::int64_t step, std::span<const LinearInfo> linears, std::int64_t fault,
                           std::string_view what);

}  // namespace nibble
