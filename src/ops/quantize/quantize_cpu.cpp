// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/quantize/quantize_blocks.h"
#include "ops/quantize/quantize_kernels.h"
#include "ops/quantize/quantize_rotated.h"
#include "ops/quantize/rotate.h"
#include "quant/fp8_tensor.h"
#include "quant/hadamard.h"

namespace nibble::cpu {
namespace {

/// Tiles of work, fixed by the problem: multiples of the blocks. Long runs along a row keep the processor's
/// prefetching going: out of cache, 2048 columns instead of 8192 cost 1x16 nearly half of its speed.
constexpr std::int64_t kPartRows = 64, kPartCols = 8192;

struct Parts {
  std::int64_t rows, cols, across;

  Parts(std::int64_t r, std::int64_t c) : rows(r), cols(c), across((c + kPartCols - 1) / kPartCols) {}
  std::int64_t count() const { return (rows + kPartRows - 1) / kPartRows * across; }
  QuantizePart at(std::int64_t i) const {
    const std::int64_t row = i / across * kPartRows, col = i % across * kPartCols;
    return {row, std::min(kPartRows, rows - row), col, std::min(kPartCols, cols - col)};
  }
};

QuantizeJob job_of(const ConstRealView& x, const QuantSpec& spec, bool transpose) {
  const QuantizedShape s = quantized_shape(spec, x.size(0), x.size(1), transpose);
  QuantizeJob job;
  job.x = x.data();
  job.x_is_f32 = x.dtype() == DType::F32;
  job.transpose = transpose;
  job.x_rows = x.size(0);
  job.x_cols = x.size(1);
  job.x_stride = x.stride(0);
  job.rows = s.rows;
  job.cols = s.cols;
  job.spec = spec;
  return job;
}

float find_amax(Stream& stream, const QuantizeJob& job) {
  const bool drop_nan = job.spec.non_finite == NonFinite::AsTe;
  const bool rotated = job.spec.rotation != 0;
  const Parts parts = rotated ? Parts(job.rows, job.cols) : Parts(job.x_rows, job.x_cols);
  const ArenaScope scope(stream.scratch());
  const View<std::uint32_t> partial = stream.scratch().take<std::uint32_t>(parts.count());
  stream.pool().parallel_for(parts.count(), [&](std::int64_t i) {
    const QuantizePart p = parts.at(i);
    if (rotated) {
      partial(i) = NIBBLE_SIMD_CALL(rotated_amax_bits, job, p);
      return;
    }
    const std::size_t bytes = job.x_is_f32 ? 4 : 2;
    const char* at =
        static_cast<const char*>(job.x) + static_cast<std::size_t>(p.row * job.x_stride + p.col) * bytes;
    partial(i) = NIBBLE_SIMD_CALL(amax_bits, at, job.x_is_f32, p.rows, p.cols, job.x_stride, drop_nan);
  });
  std::uint32_t amax = 0;
  for (std::int64_t i = 0; i < parts.count(); ++i) amax = std::max(amax, partial(i));
  return bits_float(amax);
}

/// Whether kernels of this backend take the job: what is common, and of the rest what recipes quantise most:
/// NVFP4 with headroom or another bound, MS-EDEN, four-over-six of rows to nearest, MXFP4 under 3/4.
bool has_kernel(const QuantSpec& spec) {
  if (is_common(spec) || spec.eden_group != 0) return true;
  QuantSpec rest = spec;  // without the option that has a kernel
  if (spec.four_over_six != FourOverSix::Off) {
    if (spec.tile == Tile::Square || spec.rounding != Rounding::NearestEven || spec.headroom) return false;
    rest.four_over_six = FourOverSix::Off;
  }
  rest.scale_bound = 448;
  rest.headroom = false;
  if (spec.scale_rule == MxScaleRule::ThreeQuarters && spec.non_finite == NonFinite::Detect)
    rest.scale_rule = MxScaleRule::RoundUp;
  return is_common(rest);
}

/// Whether quantize_nvfp4_rows takes this job.
bool is_row_job(const QuantizeJob& job) {
  const bool aligned = job.row_elements % 16 == 0 && job.random.first_element % 16 == 0;
  return is_common(job.spec) && job.spec.format == Format::Nvfp4 && !job.transpose && !job.x_is_f32 &&
         job.spec.rotation == 0 &&
         (job.spec.rounding == Rounding::NearestEven ||
          (job.spec.rounding == Rounding::Stochastic && aligned));
}

void set_scales(QuantizeJob& job, float amax) {
  job.nvfp4 = tensor_scale(job.spec, amax);
  job.amax_factor = amax_factor(job.spec);
  const float value_for_inf = job.x_is_f32 && job.spec.rotation == 0 ? kFloatMax : kBf16Max;
  if (job.spec.format == Format::Fp8E4M3) job.fp8 = Fp8Scale::from_amax<E4M3>(amax, value_for_inf);
  if (job.spec.format == Format::Fp8E5M2) job.fp8 = Fp8Scale::from_amax<E5M2>(amax, value_for_inf);
}

void quantize_all(Stream& stream, const QuantizeJob& job) {
  const Parts parts(job.rows, job.cols);
  const bool rows = is_row_job(job);
  stream.pool().parallel_for(parts.count(), [&](std::int64_t i) {
    const QuantizePart p = parts.at(i);
    if (rows) {
      NIBBLE_SIMD_CALL(quantize_nvfp4_rows, job, p);
    } else {
      NIBBLE_SIMD_CALL(quantize_part, job, p);
    }
  });
}

/// What has no kernel of its own: the reference's blocks, strips of rows in parallel. The kernels for amax
/// serve every format.
void run_strips(Stream& stream, const Quantize& q) {
  const float amax =
      q.amax_given != nullptr ? *q.amax_given : find_amax(stream, job_of(q.x_RC, q.spec, q.transpose));
  note_fault(q.spec.non_finite, amax, q.fault, q.fault_id);
  *q.amax = amax;
  *q.scale = operand_scale(q, amax);
  const std::int64_t rows = q.x_RC.size(q.transpose ? 1 : 0), strip = rows_of_a_strip(q.spec);
  stream.pool().parallel_for((rows + strip - 1) / strip, [&](std::int64_t i) {
    quantize_rows(q, amax, i * strip, std::min((i + 1) * strip, rows));
  });
}

/// Whether the vectorised decoder knows this operand.
bool is_common(const Dequantize& d) {
  return d.format <= Format::Fp8E5M2 && d.row_amax.empty() && d.scale_bound == 448 && d.amax_factor == 1.0f &&
         (d.format != Format::Mxfp4 || d.scale == nullptr || *d.scale == 1.0f);
}

}  // namespace

void run(Stream& stream, const Quantize& q) {
  if (!rotates_in_passing(q.spec)) {
    const ArenaScope scope(stream.scratch());
    return run(stream, on_rotated_copy(stream, q));
  }
  if (!has_kernel(q.spec)) return run_strips(stream, q);
  QuantizeJob job = job_of(q.x_RC, q.spec, q.transpose);
  job.random = q.random.resolved();
  job.row_elements = q.row_elements != 0 ? q.row_elements : job.x_cols;
  job.values = q.values.data();
  job.codes = q.codes.data();
  job.scales = q.scales.data();
  if (job.values) job.values_stride = q.values.stride(0);
  if (job.codes) job.codes_stride = q.codes.stride(0);
  if (job.scales) job.scales_stride = q.scales.stride(0);

  const float amax = q.amax_given != nullptr ? *q.amax_given : find_amax(stream, job);
  note_fault(q.spec.non_finite, amax, q.fault, q.fault_id);
  set_scales(job, amax);
  *q.amax = amax;
  *q.scale = operand_scale(q, amax);
  if (job.values || job.codes) quantize_all(stream, job);
}

void run(Stream& stream, const Rotate& r) {
  RotateJob job{.source = job_of(r.x_RC, {.format = Format::Bf16}, r.transpose), .size = r.size};
  job.signs = rotation_signs(r.size, r.signs, r.sign_mask, r.random.resolved());
  job.out = r.out.data();
  job.row_stride = r.out.stride(0);
  job.col_stride = r.out.stride(1);
  const Parts parts(r.out.size(0), r.out.size(1));
  stream.pool().parallel_for(parts.count(),
                             [&](std::int64_t i) { NIBBLE_SIMD_CALL(rotate_part, job, parts.at(i)); });
}

void run(Stream& stream, const Dequantize& d) {
  constexpr std::int64_t kRows = 64;
  const std::int64_t rows = d.out_RC.size(0), cols = d.out_RC.size(1);
  if (!is_common(d)) {
    stream.pool().parallel_for((rows + kRows - 1) / kRows, [&](std::int64_t i) {
      nibble::dequantize_rows(d, i * kRows, std::min((i + 1) * kRows, rows));
    });
    return;
  }
  const QuantizedShape s = quantized_shape({.format = d.format}, rows, cols, false);
  stream.pool().parallel_for((rows + kRows - 1) / kRows, [&](std::int64_t i) {
    const std::int64_t row = i * kRows;
    DequantizeJob job{.format = d.format, .rows = std::min(kRows, rows - row), .cols = cols};
    job.codes = d.codes.data() + row * d.codes.stride(0);
    job.codes_stride = d.codes.stride(0);
    if (s.scale_cols != 0) {
      job.scales = d.scales.data() + row * d.scales.stride(0);
      job.scales_stride = d.scales.stride(0);
    }
    job.amax = d.amax != nullptr ? *d.amax : 0.0f;
    job.scale = d.scale != nullptr ? *d.scale : 1.0f;
    job.out = d.out_RC.data() + row * d.out_RC.stride(0);
    job.out_stride = d.out_RC.stride(0);
    NIBBLE_SIMD_CALL(dequantize_rows, job);
  });
}

}  // namespace nibble::cpu
