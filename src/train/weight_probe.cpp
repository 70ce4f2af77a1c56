// SPDX-License-Identifier: Apache-2.0
#include "train/weight_probe.h"

#include <algorithm>

#include "layers/amax_state.h"
#include "ops/health/tensor_sums.h"
#include "ops/quantize/quantize.h"
#include "quant/nvfp4.h"

namespace nibble {
namespace {

constexpr std::int64_t kKeptRows = 64;

View<float> matrix(View<float> flat, const ParamInfo& info) {
  return View<float>(flat.data(), info.shape.at(0), flat.size(0) / info.shape.at(0));
}

/// What the GEMMs read: the BF16 copy, or the master weights under an FP32 recipe.
ConstRealView read_by_gemms(const ParamStore& params, const ParamStore::Entry& e) {
  const View<float> master = matrix(params.master(e), e.info);
  if (!e.has_copy) return master;
  return View<const bf16>(params.copy(e).data(), master.size(0), master.size(1));
}

/// Rows of the weight as the quantiser leaves them, into out_RC.
void decode_rows(Stream& stream, ConstRealView w_NK, const QuantSpec& spec, std::int64_t first,
                 View<float> out_RC) {
  Arena& scratch = stream.scratch();
  const ArenaScope scope(scratch);
  const QuantizedShape shape = quantized_shape(spec, w_NK.size(0), w_NK.size(1), false);
  const View<std::uint8_t> codes = scratch.take<std::uint8_t>(shape.rows, shape.code_cols);
  View<std::uint8_t> scales;
  if (shape.scale_cols > 0) scales = scratch.take<std::uint8_t>(shape.rows, shape.scale_cols);
  View<float> row_amax;
  if (spec.tensor_scaling == TensorScaling::Row) row_amax = scratch.take<float>(shape.rows);
  float* const numbers = scratch.take<float>(2).data();
  quantize(stream, {.x_RC = w_NK,
                    .spec = spec,
                    .amax = numbers,
                    .scale = numbers + 1,
                    .codes = codes,
                    .scales = scales,
                    .row_amax = row_amax});
  const std::int64_t rows = out_RC.size(0);
  Dequantize d{.format = spec.format, .codes = codes.rows(first, rows)};
  if (shape.scale_cols > 0) d.scales = scales.rows(first, rows);
  if (!row_amax.empty()) d.row_amax = row_amax.rows(first, rows);
  d.amax = numbers;
  d.scale = numbers + 1;
  d.out_RC = out_RC;
  d.scale_bound = spec.scale_bound;
  d.amax_factor = amax_factor(spec);
  dequantize(stream, d);
}

KeptWeight keep(Stream& stream, Arena& arena, const ParamStore& params, const ParamStore::Entry& e,
                const QuantSpec& spec, std::int64_t step) {
  KeptWeight k{.entry = &e, .spec = for_quantiser(spec)};
  const View<float> master = matrix(params.master(e), e.info);
  const std::int64_t rows = std::min(kKeptRows, master.size(0));
  k.first_row = observed_stretch(step, master.size(0) / rows) * rows;
  k.master = arena.take<float>(rows, master.size(1));
  const View<float> from = master.rows(k.first_row, rows);
  stream.device().copy(k.master.data(), from.data(), static_cast<std::size_t>(from.numel()) * sizeof(float));
  if (!is_quantized(spec.format)) return k;
  k.decoded = arena.take<float>(rows, quantized_shape(k.spec, master.size(0), master.size(1), false).cols);
  decode_rows(stream, read_by_gemms(params, e), k.spec, k.first_row, k.decoded);
  return k;
}

}  // namespace

std::vector<KeptWeight> keep_weights(Stream& stream, Arena& arena, const ParamStore& params,
                                     std::span<const LinearInfo> linears,
                                     std::span<const ResolvedLinear> plan, std::int64_t step,
                                     QuantObserver& observer) {
  std::vector<KeptWeight> kept;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const QuantSpec& spec = plan[i].fprop.b;
    WeightSums* const out = observer.weight(linears[i], spec);
    if (out == nullptr) continue;
    const ParamStore::Entry& e = params.at(linears[i].name + ".weight");
    measure_tensor(stream, {.x_RC = matrix(params.grad(e), e.info), .out = &out->gradient});
    kept.push_back(keep(stream, arena, params, e, spec, step));
    kept.back().out = out;
  }
  return kept;
}

void compare_weights(Stream& stream, const ParamStore& params, const std::vector<KeptWeight>& kept) {
  for (const KeptWeight& k : kept) {
    const View<float> master = matrix(params.master(*k.entry), k.entry->info);
    measure_difference(
        stream,
        {.a_RC = master.rows(k.first_row, k.master.size(0)), .b_RC = k.master, .out = &k.out->update});
    if (k.decoded.empty()) continue;
    const ArenaScope scope(stream.scratch());
    const View<float> now = stream.scratch().take<float>(k.decoded.size(0), k.decoded.size(1));
    decode_rows(stream, read_by_gemms(params, *k.entry), k.spec, k.first_row, now);
    measure_difference(stream, {.a_RC = now, .b_RC = k.decoded, .out = &k.out->decoded});
  }
}

}  // namespace nibble
