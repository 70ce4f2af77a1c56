// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_cuda.h"

#include "ops/quantize/quantize_pair.h"
#include "ops/quantize/quantize_rotated.h"

namespace nibble::cuda {
namespace {

bool begin_wide(const void* rows, std::int64_t stride_bytes) {
  return rows != nullptr && reinterpret_cast<std::uintptr_t>(rows) % 16 == 0 && stride_bytes % 16 == 0;
}

bool is_fast(const QuantizeJob& job) {
  return rows_fit(job) || squares_fit(job) || tiles_fit(job) || fp8_fits(job) || mxfp8_fits(job) ||
         four_over_six_fits(job);
}

/// The amax is known, or on its way.
void write_outputs(Stream& stream, const QuantizeJob& job) {
  if (rows_fit(job)) return quantize_rows(stream, job);
  if (squares_fit(job)) return quantize_squares(stream, job);
  if (tiles_fit(job)) return quantize_tiles(stream, nullptr, job);
  if (fp8_fits(job)) return quantize_fp8(stream, job);
  if (mxfp8_fits(job)) return quantize_mxfp8(stream, job);
  if (four_over_six_fits(job)) return quantize_four_over_six(stream, job);
  quantize_general(stream, job);
}

}  // namespace

QuantizeJob job_of(const Quantize& q) {
  const QuantizedShape s = quantized_shape(q.spec, q.x_RC.size(0), q.x_RC.size(1), q.transpose);
  QuantizeJob job;
  job.x = q.x_RC.data();
  job.x_is_f32 = q.x_RC.dtype() == DType::F32;
  job.transpose = q.transpose;
  job.x_rows = q.x_RC.size(0);
  job.x_cols = q.x_RC.size(1);
  job.x_stride = q.x_RC.stride(0);
  job.rows = s.rows;
  job.cols = s.cols;
  job.row_elements = q.row_elements != 0 ? q.row_elements : job.x_cols;
  job.spec = q.spec;
  job.random = q.random;
  job.philox = PhiloxKeys::of(q.random.seed);
  job.given = q.amax_given != nullptr;
  job.amax = job.given ? q.amax_given : q.amax;
  job.publish = {q.amax, q.scale, q.fault, q.fault_id, q.spec, !job.x_is_f32 || q.spec.rotation != 0};
  job.values = q.values.data();
  job.codes = q.codes.data();
  job.scales = q.scales.data();
  job.row_amax = q.row_amax.data();
  if (job.values) job.values_stride = q.values.stride(0);
  if (job.codes) job.codes_stride = q.codes.stride(0);
  if (job.scales) job.scales_stride = q.scales.stride(0);
  if (job.row_amax) job.row_amax_stride = q.row_amax.stride(0);
  job.wide_x = !job.x_is_f32 && begin_wide(job.x, job.x_stride * 2);
  job.wide_values = begin_wide(job.values, job.values_stride * 2);
  job.wide_codes = begin_wide(job.codes, job.codes_stride);
  return job;
}

void run(Stream& stream, const Quantize& q) {
  if (!rotates_in_passing(q.spec)) {
    const ArenaScope scope(stream.scratch());
    return run(stream, on_rotated_copy(stream, q));
  }
  const QuantizeJob job = job_of(q);
  if (!job.given) find_amax(stream, job);
  if (!job.writes() && job.row_amax == nullptr) {
    if (job.given) publish_given(stream, job);
    return;
  }
  // Telemetry wants values and codes, of which the fast kernels write one: codes with their scales first,
  // which publish a given amax. Random bits are the element's in both.
  QuantizeJob codes = job, values = job;
  codes.values = nullptr;
  values.codes = values.scales = nullptr;
  values.given = false;
  if (job.values == nullptr || job.codes == nullptr || !is_fast(codes) || !is_fast(values))
    return write_outputs(stream, job);
  write_outputs(stream, codes);
  write_outputs(stream, values);
}

void run(Stream& stream, const QuantizePair& pair) {
  if (!rotates_in_passing(pair.rows.spec) || !rotates_in_passing(pair.transposed.spec)) {
    run(stream, row_copy(pair));
    run(stream, transposed_copy(pair));
    return;
  }
  QuantizeJob rows = job_of(row_copy(pair));
  const QuantizeJob transposed = job_of(transposed_copy(pair));
  const bool fp8 = fp8_pair_fits(rows, transposed);
  if (!fp8 && !pair_fits(rows, transposed)) {
    run(stream, row_copy(pair));
    run(stream, transposed_copy(pair));
    return;
  }
  // In this order a fault of the rows is noted first; the kernel publishes what is given, rows first.
  if (!rows.given && !transposed.given) {
    if (transposed.spec.rotation != 0)
      find_both_amaxes(stream, rows, transposed);
    else
      find_common_amax(stream, rows, transposed);
  } else if (!rows.given) {
    find_amax(stream, rows);
  } else if (!transposed.given) {
    publish_given(stream, rows);
    rows.given = false;
    find_amax(stream, transposed);
  }
  if (fp8) return quantize_fp8_pair(stream, rows, transposed);
  quantize_tiles(stream, &rows, transposed);
}

}  // namespace nibble::cuda
