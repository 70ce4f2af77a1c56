// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/quantized_attention.h"
#include "ops/attention/quantized_attention_kernels.h"
#include "ops/attention/quantized_lines.h"
#include "quant/amax.h"

// The reference's sums in its order, a sequence and group of heads at a time in parallel. Every product is a
// sum of scaled rows, which vectorises without changing the order of a single sum.
namespace nibble::cpu {
namespace {

using Matrix = std::vector<float>;  ///< rows of one head, contiguous

void add_scaled(double* to, double a, const float* x, std::int64_t n) {
  NIBBLE_SIMD_CALL(add_scaled, to, a, x, n);
}

/// One head in one sequence as [S, D], or turned as [D, S].
Matrix read(const AttentionOperand& x, std::int64_t first, std::int64_t S, std::int64_t h, bool turned) {
  const std::int64_t D = x.x_THD.size(2);
  Matrix out(static_cast<std::size_t>(S * D));
  for (std::int64_t t = 0; t < S; ++t)
    for (std::int64_t d = 0; d < D; ++d) out[turned ? d * S + t : t * D + d] = x.x_THD.get(first + t, h, d);
  return out;
}

/// out[s] = factor * x . column s of turned, s < count
void dots(const float* x, const Matrix& turned, std::int64_t D, std::int64_t S, std::int64_t count,
          float factor, std::vector<double>& out) {
  out.assign(static_cast<std::size_t>(count), 0.0);
  for (std::int64_t d = 0; d < D; ++d) add_scaled(out.data(), double{x[d]}, turned.data() + d * S, count);
  for (double& v : out) v *= factor;
}

void write(const double* sums, float factor, const RealView& to, std::int64_t t, std::int64_t h) {
  for (std::int64_t d = 0; d < to.size(2); ++d) to.set(static_cast<float>(factor * sums[d]), t, h, d);
}

/// p of the first scores.size() keys.
void probabilities(const std::vector<double>& scores, float lse, std::vector<float>& p) {
  p.resize(scores.size());
  for (std::size_t s = 0; s < scores.size(); ++s) p[s] = static_cast<float>(std::exp(scores[s] - lse));
}

struct Shape {
  std::int64_t S, D, heads, groups, per_group, sequences;

  template <class Args>
  explicit Shape(const Args& a)
      : S(a.seq_len),
        D(a.q.x_THD.size(2)),
        heads(a.q.x_THD.size(1)),
        groups(a.k.x_THD.size(1)),
        per_group(heads / groups),
        sequences(a.q.x_THD.size(0) / S) {}
};

void forward_of_group(const QuantizedAttention& a, const Shape& z, std::int64_t first, std::int64_t g) {
  const LineScale p_scale = probability_scale(a.pv);
  const float score_factor = a.scale * alpha_of(a.q, a.k), out_factor = alpha_of(a.pv, p_scale, a.v);
  const Matrix k = read(a.k, first, z.S, g, true), v = read(a.v, first, z.S, g, false);
  std::vector<double> scores, out(static_cast<std::size_t>(z.D));
  std::vector<float> p;
  for (std::int64_t h = g * z.per_group; h < (g + 1) * z.per_group; ++h) {
    const Matrix q = read(a.q, first, z.S, h, false);
    for (std::int64_t t = 0; t < z.S; ++t) {
      dots(q.data() + t * z.D, k, z.D, z.S, t + 1, score_factor, scores);
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double s : scores) sum += std::exp(s - largest);
      const float lse = static_cast<float>(largest + std::log(sum));
      a.lse_HT(h, first + t) = lse;
      probabilities(scores, lse, p);
      quantize_line(a.pv, p_scale, p.data(), 1, t + 1);
      std::fill(out.begin(), out.end(), 0.0);
      for (std::int64_t s = 0; s <= t; ++s) add_scaled(out.data(), double{p[s]}, v.data() + s * z.D, z.D);
      write(out.data(), out_factor, a.out_THD, first + t, h);
    }
  }
}

/// What all heads of a group read in one sequence.
struct Group {
  Matrix k, v_p, k_q;

  Group(const QuantizedAttentionBackward& a, const Shape& z, std::int64_t first, std::int64_t g)
      : k(read(a.k, first, z.S, g, true)),
        v_p(read(a.v_p, first, z.S, g, true)),
        k_q(read(a.k_q, first, z.S, g, false)) {}
};

/// P and ds of every query of one head.
class Rows {
 public:
  Rows(const QuantizedAttentionBackward& a, const Shape& z, const Group& group, std::int64_t first,
       std::int64_t h)
      : a_(a),
        z_(z),
        group_(group),
        first_(first),
        h_(h),
        q_(read(a.q, first, z.S, h, false)),
        dout_(read(a.dout_p, first, z.S, h, false)) {}

  void make(std::int64_t t) {
    dots(q_.data() + t * z_.D, group_.k, z_.D, z_.S, t + 1, a_.scale * alpha_of(a_.q, a_.k), scores_);
    probabilities(scores_, a_.lse_HT(h_, first_ + t), p);
    dots(dout_.data() + t * z_.D, group_.v_p, z_.D, z_.S, t + 1, alpha_of(a_.dout_p, a_.v_p), dp_);
    double mean = 0;
    for (std::int64_t s = 0; s <= t; ++s) mean += p[s] * dp_[s];
    ds.resize(p.size());
    for (std::int64_t s = 0; s <= t; ++s) ds[s] = static_cast<float>(p[s] * (dp_[s] - mean));
    quantize_line(a_.pv, probability_scale(a_.pv), p.data(), 1, t + 1);
  }

  std::vector<float> p, ds;

 private:
  const QuantizedAttentionBackward& a_;
  const Shape& z_;
  const Group& group_;
  std::int64_t first_, h_;
  Matrix q_, dout_;
  std::vector<double> scores_, dp_;
};

float amax_of_ds(Stream& stream, const QuantizedAttentionBackward& a, const Shape& z) {
  std::vector<float> amax(static_cast<std::size_t>(z.sequences * z.groups), 0.0f);
  stream.pool().parallel_for(z.sequences * z.groups, [&](std::int64_t i) {
    const std::int64_t first = i / z.groups * z.S, g = i % z.groups;
    const Group group(a, z, first, g);
    for (std::int64_t h = g * z.per_group; h < (g + 1) * z.per_group; ++h) {
      Rows rows(a, z, group, first, h);
      for (std::int64_t t = 0; t < z.S; ++t) {
        rows.make(t);
        for (float ds : rows.ds) amax[i] = amax_keeping_nan(amax[i], ds);
      }
    }
  });
  float all = 0;
  for (float x : amax) all = amax_keeping_nan(all, x);
  return all;
}

void backward_of_head(const QuantizedAttentionBackward& a, const Shape& z, const Group& group,
                      const LineScale& ds_scale, std::int64_t first, std::int64_t h, double* dk, double* dv) {
  const float dq_factor = a.scale * alpha_of(a.ds, ds_scale, a.k_q);
  const Matrix dout = read(a.dout_v, first, z.S, h, false), q = read(a.q_k, first, z.S, h, false);
  Matrix ds(static_cast<std::size_t>(z.S * z.S), 0.0f);
  std::vector<double> dq(static_cast<std::size_t>(z.D));
  Rows rows(a, z, group, first, h);
  for (std::int64_t t = 0; t < z.S; ++t) {
    rows.make(t);
    std::copy(rows.ds.begin(), rows.ds.end(), ds.begin() + t * z.S);
    quantize_line(a.ds, ds_scale, rows.ds.data(), 1, t + 1);
    std::fill(dq.begin(), dq.end(), 0.0);
    for (std::int64_t s = 0; s <= t; ++s) {
      add_scaled(dq.data(), double{rows.ds[s]}, group.k_q.data() + s * z.D, z.D);
      add_scaled(dv + s * z.D, double{rows.p[s]}, dout.data() + t * z.D, z.D);
    }
    write(dq.data(), dq_factor, a.dq_THD, first + t, h);
  }
  for (std::int64_t s = 0; s < z.S; ++s) quantize_line(a.ds, ds_scale, ds.data() + s, z.S, z.S);
  for (std::int64_t t = 0; t < z.S; ++t)
    for (std::int64_t s = 0; s <= t; ++s)
      add_scaled(dk + s * z.D, double{ds[t * z.S + s]}, q.data() + t * z.D, z.D);
}

}  // namespace

void run(Stream& stream, const QuantizedAttention& a) {
  const Shape z(a);
  stream.pool().parallel_for(z.sequences * z.groups, [&](std::int64_t i) {
    forward_of_group(a, z, i / z.groups * z.S, i % z.groups);
  });
}

void run(Stream& stream, const QuantizedAttentionBackward& a) {
  const Shape z(a);
  const float amax = needs_amax(a.ds) ? amax_of_ds(stream, a, z) : 0.0f;
  note_fault(NonFinite::Detect, amax, a.fault, a.fault_id);
  const LineScale ds_scale = LineScale::from_amax(a.ds, amax);
  const float dk_factor = a.scale * alpha_of(a.ds, ds_scale, a.q_k);
  const float dv_factor = alpha_of(a.pv, probability_scale(a.pv), a.dout_v);
  stream.pool().parallel_for(z.sequences * z.groups, [&](std::int64_t i) {
    const std::int64_t first = i / z.groups * z.S, g = i % z.groups;
    const Group group(a, z, first, g);
    std::vector<double> dk(static_cast<std::size_t>(z.S * z.D), 0.0), dv(dk.size(), 0.0);
    for (std::int64_t h = g * z.per_group; h < (g + 1) * z.per_group; ++h)
      backward_of_head(a, z, group, ds_scale, first, h, dk.data(), dv.data());
    for (std::int64_t s = 0; s < z.S; ++s) {
      write(dk.data() + s * z.D, dk_factor, a.dk_TGD, first + s, g);
      write(dv.data() + s * z.D, dv_factor, a.dv_TGD, first + s, g);
    }
  });
}

}  // namespace nibble::cpu
