// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize.h"

#include "quant/format_names.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

void check_nvfp4_options(const QuantSpec& spec) {
  const std::string_view format = info(spec.format).name;
  const bool row_scaled = spec.tensor_scaling == TensorScaling::Row;
  const bool chosen = spec.four_over_six != FourOverSix::Off;
  const bool eden = spec.eden_group != 0;
  check(spec.format == Format::Nvfp4 ||
            (!row_scaled && !chosen && !eden && !spec.headroom && spec.scale_bound == 448),
        "quantize: row scaling, four-over-six, MS-EDEN, headroom and another scale bound are options of "
        "nvfp4, not of {}",
        format);
  check(!eden || (is_rotation_size(spec.eden_group) && spec.eden_group >= 16 && spec.scale_bound == 256 &&
                  spec.tile == Tile::Row && spec.rounding == Rounding::NearestEven &&
                  spec.profile == Profile::Te && !chosen && !row_scaled && !spec.headroom),
        "quantize: MS-EDEN has groups of 16, 32, 64 or 128 values, rows, rounding to nearest, profile "
        "nvfp4.te, bound 256, one scale a tensor, no headroom and no four-over-six");
  check(spec.scale_bound == 448 || spec.scale_bound == 256,
        "quantize: the bound of nvfp4's block scales is 448 or 256, not {}", spec.scale_bound);
  check(!row_scaled || spec.tile == Tile::Row, "quantize: row-scaled nvfp4 has no square tiles; use rows");
  check(
      !chosen || (!row_scaled && spec.profile == Profile::Te),
      "quantize: four-over-six has one order of operations, profile nvfp4.te, and one scale a tensor; leave "
      "the profile and the row scaling out");
  check(!chosen || spec.tile == Tile::Row || !is_stochastic(spec.rounding),
        "quantize: four-over-six in square tiles rounds to nearest; use rows for stochastic rounding");
  check((spec.scale_bound == 448 && !spec.headroom) || spec.profile <= Profile::Te213 ||
            spec.format != Format::Nvfp4,
        "quantize: headroom and the bound 256 belong to the profiles nvfp4.te and nvfp4.te213, not to {}",
        profile_name(spec.profile));
}

void check_spec(const QuantSpec& spec) {
  const FormatInfo& format = info(spec.format);
  check(spec.rotation == 0 || is_rotation_size(spec.rotation),
        "quantize: there is no rotation of size {}; use 0 or a power of two from 2 to 128", spec.rotation);
  check(spec.random_bits >= 2 && spec.random_bits <= 16,
        "quantize: stochastic rounding takes 2 to 16 random bits, not {}", spec.random_bits);
  check(spec.tile == Tile::Row || format.square_tiles,
        "quantize: square tiles exist for nvfp4 and the fp8_block formats, not for {}; use 1-dimensional "
        "blocks",
        format.name);
  check(
      spec.rounding == Rounding::NearestEven || format.other_roundings,
      "quantize: {} is rounded to nearest even; stochastic rounding and ties away exist for nvfp4 and mxfp4",
      format.name);
  check(spec.scale_rule == MxScaleRule::RoundUp || (format.block == 32),
        "quantize: the rule of the shared exponent belongs to the mx formats, not to {}", format.name);
  check(spec.scale_rule != MxScaleRule::ThreeQuarters || spec.format == Format::Mxfp4,
        "quantize: the 3/4 trick belongs to mxfp4, not to {}", format.name);
  check_nvfp4_options(spec);
}

template <class T>
void check_output(const char* name, const View<T>& out, std::int64_t rows, std::int64_t cols) {
  if (out.empty()) return;
  check(out.rank() == 2 && out.size(0) == rows && out.size(1) == cols && (cols <= 1 || out.stride(1) == 1),
        "quantize: {} must be [{}, {}] with contiguous rows, not [{}, {}]", name, rows, cols, out.size(0),
        out.size(1));
}

}  // namespace

QuantizedShape quantized_shape(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, bool transpose) {
  check_spec(spec);
  const FormatInfo& format = info(spec.format);
  QuantizedShape s;
  s.rows = transpose ? cols : rows;
  s.cols = transpose ? rows : cols;
  if (spec.rotation != 0) s.cols = round_up(s.cols, spec.rotation);
  if (is_quantized(spec.format)) s.code_cols = format.element_bits == 4 ? (s.cols + 1) / 2 : s.cols;
  if (format.block != 0) {
    s.scale_cols = (s.cols + format.block - 1) / format.block * (format.block_scale_bits / 8);
  }
  return s;
}

void check(const Quantize& q) {
  check(q.x_RC.rank() == 2 && (q.x_RC.size(1) <= 1 || q.x_RC.stride(1) == 1),
        "quantize: x must be a matrix with contiguous rows");
  const std::int64_t rows = q.x_RC.size(0), cols = q.x_RC.size(1);
  const QuantizedShape s = quantized_shape(q.spec, rows, cols, q.transpose);
  check(q.amax != nullptr && q.scale != nullptr, "quantize: amax and scale must be given");
  check(q.row_elements == 0 || q.row_elements >= cols,
        "quantize: row_elements is {}, less than the {} columns of x", q.row_elements, cols);
  check_output("values", q.values, s.rows, s.cols);
  check(s.code_cols != 0 || q.codes.empty(), "quantize: {} has no codes", info(q.spec.format).name);
  check_output("codes", q.codes, s.rows, s.code_cols);
  const bool wants_scales = !q.codes.empty() && s.scale_cols != 0;
  check(q.scales.empty() != wants_scales,
        "quantize: codes and scales go together, and {} has {} block scales", info(q.spec.format).name,
        s.scale_cols != 0 ? "its" : "no");
  check_output("scales", q.scales, s.rows, s.scale_cols);
  const bool row_scaled = q.spec.tensor_scaling == TensorScaling::Row;
  check(row_scaled ? q.row_amax.rank() == 1 && q.row_amax.size(0) == s.rows && q.amax_given == nullptr
                   : q.row_amax.empty(),
        "quantize: row-scaled nvfp4, and nothing else, needs row_amax [{}], and takes no given amax", s.rows);
}

float gemm_inverse_range(Format a, Format b) {
  const int operands = (a == Format::Nvfp4 ? 1 : 0) + (b == Format::Nvfp4 ? 1 : 0);
  return operands == 2 ? nvfp4::kInverseRangeSquared : operands == 1 ? nvfp4::kInverseRange : 1.0f;
}

void check(const Dequantize& d) {
  const FormatInfo& format = info(d.format);
  check(is_quantized(d.format), "dequantize: {} has no codes", format.name);
  check(d.out_RC.rank() == 2, "dequantize: the output must be a matrix");
  const std::int64_t rows = d.out_RC.size(0), cols = d.out_RC.size(1);
  const std::int64_t code_cols = format.element_bits == 4 ? (cols + 1) / 2 : cols;
  check(d.codes.rank() == 2 && d.codes.size(0) == rows && d.codes.size(1) == code_cols,
        "dequantize: codes of a {} matrix [{}, {}] must be [{}, {}]", format.name, rows, cols, rows,
        code_cols);
  if (format.block != 0) {
    const std::int64_t scale_cols = (cols + format.block - 1) / format.block * (format.block_scale_bits / 8);
    check(d.scales.rank() == 2 && d.scales.size(0) == rows && d.scales.size(1) == scale_cols,
          "dequantize: scales of a {} matrix [{}, {}] must be [{}, {}]", format.name, rows, cols, rows,
          scale_cols);
  }
  check(d.format != Format::Nvfp4 || d.amax != nullptr || !d.row_amax.empty(),
        "dequantize: nvfp4 needs the tensor's amax, or row_amax");
  check(d.row_amax.empty() || (d.format == Format::Nvfp4 && d.row_amax.size(0) == rows),
        "dequantize: row_amax belongs to nvfp4 and has a value a row");
  check((d.format != Format::Fp8E4M3 && d.format != Format::Fp8E5M2) || d.scale != nullptr,
        "dequantize: {} needs the tensor's scale", format.name);
}

}  // namespace nibble
