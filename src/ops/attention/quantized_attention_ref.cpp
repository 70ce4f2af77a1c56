// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/quantized_attention.h"
#include "ops/attention/quantized_lines.h"
#include "quant/amax.h"

namespace nibble::ref {
namespace {

/// factor times the dot products of row t of x with the rows of y from the first token of its sequence to t.
std::vector<double> dots(const AttentionOperand& x, std::int64_t h, const AttentionOperand& y, std::int64_t g,
                         std::int64_t t, std::int64_t seq_len, float factor) {
  std::vector<double> out;
  for (std::int64_t s = t - t % seq_len; s <= t; ++s) {
    double dot = 0;
    for (std::int64_t d = 0; d < x.x_THD.size(2); ++d)
      dot += double{x.x_THD.get(t, h, d)} * y.x_THD.get(s, g, d);
    out.push_back(factor * dot);
  }
  return out;
}

std::vector<float> probabilities(const std::vector<double>& scores, float lse) {
  std::vector<float> p;
  for (double s : scores) p.push_back(static_cast<float>(std::exp(s - lse)));
  return p;
}

std::vector<float> quantized(Format format, const LineScale& scale, std::vector<float> line) {
  quantize_line(format, scale, line.data(), 1, static_cast<std::int64_t>(line.size()));
  return line;
}

}  // namespace

void run(Stream&, const QuantizedAttention& a) {
  const std::int64_t tokens = a.q.x_THD.size(0), heads = a.q.x_THD.size(1), width = a.q.x_THD.size(2);
  const std::int64_t per_group = heads / a.k.x_THD.size(1);
  const LineScale p_scale = probability_scale(a.pv);
  const float score_factor = a.scale * alpha_of(a.q, a.k), out_factor = alpha_of(a.pv, p_scale, a.v);
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t g = h / per_group, first = t - t % a.seq_len;
      const std::vector<double> scores = dots(a.q, h, a.k, g, t, a.seq_len, score_factor);
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double s : scores) sum += std::exp(s - largest);
      const float lse = static_cast<float>(largest + std::log(sum));
      a.lse_HT(h, t) = lse;
      const std::vector<float> p = quantized(a.pv, p_scale, probabilities(scores, lse));
      for (std::int64_t d = 0; d < width; ++d) {
        double out = 0;
        for (std::int64_t s = first; s <= t; ++s) out += double{p[s - first]} * a.v.x_THD.get(s, g, d);
        a.out_THD.set(static_cast<float>(out_factor * out), t, h, d);
      }
    }
}

namespace {

/// P and ds of one query of a head, over the keys up to it.
struct Row {
  std::vector<float> p, ds;
};

Row row_of(const QuantizedAttentionBackward& a, std::int64_t h, std::int64_t g, std::int64_t t) {
  const float score_factor = a.scale * alpha_of(a.q, a.k), dp_factor = alpha_of(a.dout_p, a.v_p);
  Row row{probabilities(dots(a.q, h, a.k, g, t, a.seq_len, score_factor), a.lse_HT(h, t)), {}};
  const std::vector<double> dp = dots(a.dout_p, h, a.v_p, g, t, a.seq_len, dp_factor);
  double mean = 0;
  for (std::size_t s = 0; s < dp.size(); ++s) mean += row.p[s] * dp[s];
  for (std::size_t s = 0; s < dp.size(); ++s) row.ds.push_back(static_cast<float>(row.p[s] * (dp[s] - mean)));
  row.p = quantized(a.pv, probability_scale(a.pv), row.p);
  return row;
}

float amax_of_ds(const QuantizedAttentionBackward& a) {
  float amax = 0;
  const std::int64_t per_group = a.q.x_THD.size(1) / a.k.x_THD.size(1);
  for (std::int64_t h = 0; h < a.q.x_THD.size(1); ++h)
    for (std::int64_t t = 0; t < a.q.x_THD.size(0); ++t)
      for (float ds : row_of(a, h, h / per_group, t).ds) amax = amax_keeping_nan(amax, ds);
  return amax;
}

/// What one head adds to dk and dv of its group in one sequence ([S, D] each); writes its dq.
void backward_of_head(const QuantizedAttentionBackward& a, const LineScale& ds_scale, std::int64_t first,
                      std::int64_t h, std::int64_t g, std::vector<double>& dk, std::vector<double>& dv) {
  const std::int64_t S = a.seq_len, D = a.q.x_THD.size(2);
  const float dq_factor = a.scale * alpha_of(a.ds, ds_scale, a.k_q);
  std::vector<float> ds(S * S, 0);
  for (std::int64_t t = 0; t < S; ++t) {
    const Row row = row_of(a, h, g, first + t);
    std::copy(row.ds.begin(), row.ds.end(), ds.begin() + t * S);
    const std::vector<float> along_keys = quantized(a.ds, ds_scale, row.ds);
    for (std::int64_t d = 0; d < D; ++d) {
      double dq = 0;
      for (std::int64_t s = 0; s <= t; ++s) dq += double{along_keys[s]} * a.k_q.x_THD.get(first + s, g, d);
      a.dq_THD.set(static_cast<float>(dq_factor * dq), first + t, h, d);
    }
    for (std::int64_t s = 0; s <= t; ++s)
      for (std::int64_t d = 0; d < D; ++d)
        dv[s * D + d] += double{row.p[s]} * a.dout_v.x_THD.get(first + t, h, d);
  }
  for (std::int64_t s = 0; s < S; ++s) quantize_line(a.ds, ds_scale, ds.data() + s, S, S);
  for (std::int64_t t = 0; t < S; ++t)
    for (std::int64_t s = 0; s <= t; ++s)
      for (std::int64_t d = 0; d < D; ++d)
        dk[s * D + d] += double{ds[t * S + s]} * a.q_k.x_THD.get(first + t, h, d);
}

}  // namespace

void run(Stream&, const QuantizedAttentionBackward& a) {
  const std::int64_t tokens = a.q.x_THD.size(0), heads = a.q.x_THD.size(1), D = a.q.x_THD.size(2);
  const std::int64_t groups = a.k.x_THD.size(1), per_group = heads / groups, S = a.seq_len;
  const float amax = needs_amax(a.ds) ? amax_of_ds(a) : 0.0f;
  note_fault(NonFinite::Detect, amax, a.fault, a.fault_id);
  const LineScale ds_scale = LineScale::from_amax(a.ds, amax);
  const float dk_factor = a.scale * alpha_of(a.ds, ds_scale, a.q_k);
  const float dv_factor = alpha_of(a.pv, probability_scale(a.pv), a.dout_v);
  for (std::int64_t first = 0; first < tokens; first += S)
    for (std::int64_t g = 0; g < groups; ++g) {
      std::vector<double> dk(S * D, 0), dv(S * D, 0);
      for (std::int64_t h = g * per_group; h < (g + 1) * per_group; ++h)
        backward_of_head(a, ds_scale, first, h, g, dk, dv);
      for (std::int64_t s = 0; s < S; ++s)
        for (std::int64_t d = 0; d < D; ++d) {
          a.dk_TGD.set(static_cast<float>(dk_factor * dk[s * D + d]), first + s, g, d);
          a.dv_TGD.set(static_cast<float>(dv_factor * dv[s * D + d]), first + s, g, d);
        }
    }
}

}  // namespace nibble::ref
