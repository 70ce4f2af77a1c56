// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/attention.h"

namespace nibble::ref {
namespace {

struct Row {
  std::vector<double> p;  ///< the probabilities of keys 0 to t of the sequence
  double lse = 0;
};

/// The softmax of query `t` (a token of the whole batch) of head h over the keys of its own sequence up to
/// it.
template <class Args>
Row softmax_row(const Args& a, std::int64_t t, std::int64_t h, std::int64_t g) {
  const std::int64_t first = t - t % a.seq_len, width = a.q_THD.size(2);
  Row row;
  double largest = -INFINITY;
  for (std::int64_t s = first; s <= t; ++s) {
    double dot = 0;
    for (std::int64_t d = 0; d < width; ++d) dot += double{a.q_THD.get(t, h, d)} * a.k_TGD.get(s, g, d);
    row.p.push_back(a.scale * dot);
    largest = std::max(largest, row.p.back());
  }
  double sum = 0;
  for (double p : row.p) sum += std::exp(p - largest);
  row.lse = largest + std::log(sum);
  for (double& p : row.p) p = std::exp(p - row.lse);
  return row;
}

}  // namespace

void run(Stream&, const Attention& a) {
  const std::int64_t tokens = a.q_THD.size(0), heads = a.q_THD.size(1), width = a.q_THD.size(2);
  const std::int64_t per_group = heads / a.k_TGD.size(1);
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t g = h / per_group, first = t - t % a.seq_len;
      const Row row = softmax_row(a, t, h, g);
      a.lse_HT(h, t) = static_cast<float>(row.lse);
      for (std::int64_t d = 0; d < width; ++d) {
        double sum = 0;
        for (std::int64_t s = first; s <= t; ++s) sum += row.p[s - first] * a.v_TGD.get(s, g, d);
        a.out_THD.set(static_cast<float>(sum), t, h, d);
      }
    }
}

namespace {

/// What one head adds to dk and dv of its group ([T, D] each); writes its dq.
void backward_of_head(const AttentionBackward& a, std::int64_t h, std::int64_t g, std::vector<double>& dk,
                      std::vector<double>& dv) {
  const std::int64_t tokens = a.q_THD.size(0), width = a.q_THD.size(2);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t first = t - t % a.seq_len;
    const Row row = softmax_row(a, t, h, g);
    std::vector<double> dp(row.p.size(), 0), dq(width, 0);
    double mean = 0;  // of dp under the probabilities, which is out . dout
    for (std::int64_t d = 0; d < width; ++d) mean += double{a.out_THD.get(t, h, d)} * a.dout_THD.get(t, h, d);
    for (std::int64_t s = first; s <= t; ++s) {
      for (std::int64_t d = 0; d < width; ++d) {
        const double dout = a.dout_THD.get(t, h, d);
        dp[s - first] += dout * a.v_TGD.get(s, g, d);
        dv[s * width + d] += row.p[s - first] * dout;
      }
    }
    for (std::int64_t s = first; s <= t; ++s) {
      const double dscore = row.p[s - first] * (dp[s - first] - mean) * a.scale;
      for (std::int64_t d = 0; d < width; ++d) {
        dq[d] += dscore * a.k_TGD.get(s, g, d);
        dk[s * width + d] += dscore * a.q_THD.get(t, h, d);
      }
    }
    for (std::int64_t d = 0; d < width; ++d) a.dq_THD.set(static_cast<float>(dq[d]), t, h, d);
  }
}

}  // namespace

void run(Stream&, const AttentionBackward& a) {
  const std::int64_t tokens = a.q_THD.size(0), heads = a.q_THD.size(1), width = a.q_THD.size(2);
  const std::int64_t groups = a.k_TGD.size(1), per_group = heads / groups;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<double> dk(tokens * width, 0), dv(tokens * width, 0);
    for (std::int64_t h = g * per_group; h < (g + 1) * per_group; ++h) backward_of_head(a, h, g, dk, dv);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t d = 0; d < width; ++d) {
        a.dk_TGD.set(static_cast<float>(dk[t * width + d]), t, g, d);
        a.dv_TGD.set(static_cast<float>(dv[t * width + d]), t, g, d);
      }
  }
}

}  // namespace nibble::ref
