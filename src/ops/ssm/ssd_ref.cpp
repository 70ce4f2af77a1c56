// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/ssm/ssd.h"

/// The recurrence as it is written, one token after another, in double precision.
namespace nibble::ref {
namespace {

struct Step {
  double dt = 0;     ///< after softplus and the limits
  double slope = 0;  ///< d dt / d dt_raw
  double decay = 0;  ///< exp(dt a)
};

template <class Args>
Step step_of(const Args& args, std::int64_t t, std::int64_t h) {
  const double z = double{args.dt_TH.get(t, h)} + args.dt_bias_H(h);
  const double softplus = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
  Step step;
  step.dt = std::clamp(softplus, double{args.dt_min}, double{args.dt_max});
  step.slope = step.dt == softplus ? 1 / (1 + std::exp(-z)) : 0;
  step.decay = std::exp(-step.dt * std::exp(double{args.a_log_H(h)}));
  return step;
}

/// state = decay state + dt x B^T
template <class Args>
void advance(const Args& a, std::int64_t t, std::int64_t h, const Step& step, std::vector<double>& state) {
  const std::int64_t width = a.x_THP.size(2), n_state = a.b_TGN.size(2);
  const std::int64_t g = h / (a.x_THP.size(1) / a.b_TGN.size(1));
  for (std::int64_t p = 0; p < width; ++p)
    for (std::int64_t n = 0; n < n_state; ++n) {
      double& s = state[p * n_state + n];
      s = step.decay * s + step.dt * a.x_THP.get(t, h, p) * a.b_TGN.get(t, g, n);
    }
}

}  // namespace

void run(Stream&, const Ssd& a) {
  const std::int64_t tokens = a.x_THP.size(0), heads = a.x_THP.size(1), width = a.x_THP.size(2);
  const std::int64_t n_state = a.b_TGN.size(2), per_group = heads / a.b_TGN.size(1);
  const std::int64_t chunks = chunks_of(a.seq_len, a.chunk);
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<double> state(width * n_state);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t within = t % a.seq_len;
      if (within == 0) std::fill(state.begin(), state.end(), 0.0);
      if (within % a.chunk == 0) {
        float* kept = &a.states(t / a.seq_len * chunks + within / a.chunk, h, 0, 0);
        for (std::size_t i = 0; i < state.size(); ++i) kept[i] = static_cast<float>(state[i]);
      }
      advance(a, t, h, step_of(a, t, h), state);
      for (std::int64_t p = 0; p < width; ++p) {
        double y = double{a.d_H(h)} * a.x_THP.get(t, h, p);
        for (std::int64_t n = 0; n < n_state; ++n)
          y += state[p * n_state + n] * a.c_TGN.get(t, h / per_group, n);
        a.y_THP.set(static_cast<float>(y), t, h, p);
      }
    }
  }
}

namespace {

/// The gradients that several heads or tokens share, in double until the end.
struct Sums {
  std::vector<double> db, dc;  ///< [T, G, N]
  double a_log = 0, d = 0, dt_bias = 0;
};

/// `before` and `after` are the states around token t; `grad` arrives as dL/dS_t and leaves as dL/dS_{t-1}.
void backward_of_token(const SsdBackward& a, std::int64_t t, std::int64_t h,
                       const std::vector<double>& before, const std::vector<double>& after,
                       std::vector<double>& grad, Sums& sums) {
  const std::int64_t width = a.x_THP.size(2), n_state = a.b_TGN.size(2), groups = a.b_TGN.size(1);
  const std::int64_t g = h / (a.x_THP.size(1) / groups);
  const Step step = step_of(a, t, h);
  double* db = &sums.db[(t * groups + g) * n_state];
  double* dc = &sums.dc[(t * groups + g) * n_state];
  double ddt = 0, ddecay = 0;
  for (std::int64_t p = 0; p < width; ++p) {
    const double x = a.x_THP.get(t, h, p), dy = a.dy_THP.get(t, h, p);
    double xb = 0;  // sum over n of dS[p, n] B[n]
    for (std::int64_t n = 0; n < n_state; ++n) {
      double& ds = grad[p * n_state + n];
      ds += dy * a.c_TGN.get(t, g, n);
      dc[n] += dy * after[p * n_state + n];
      db[n] += step.dt * x * ds;
      xb += ds * a.b_TGN.get(t, g, n);
      ddecay += ds * before[p * n_state + n];
      ds *= step.decay;
    }
    ddt += x * xb;
    sums.d += dy * x;
    a.dx_THP.set(static_cast<float>(step.dt * xb + a.d_H(h) * dy), t, h, p);
  }
  const double slope_a = -std::exp(double{a.a_log_H(h)});  // d(a)/d(a_log) is a itself
  ddt += ddecay * step.decay * slope_a;
  sums.a_log += ddecay * step.decay * step.dt * slope_a;
  sums.dt_bias += ddt * step.slope;
  a.ddt_TH.set(static_cast<float>(ddt * step.slope), t, h);
}

/// Runs one chunk of one head again from the state kept before it, then backwards.
void backward_of_chunk(const SsdBackward& a, std::int64_t first, std::int64_t count, const float* kept,
                       std::int64_t h, std::vector<double>& grad, Sums& sums) {
  std::vector<std::vector<double>> states(count + 1);
  states[0].assign(kept, kept + grad.size());
  for (std::int64_t i = 0; i < count; ++i) {
    states[i + 1] = states[i];
    advance(a, first + i, h, step_of(a, first + i, h), states[i + 1]);
  }
  for (std::int64_t i = count - 1; i >= 0; --i)
    backward_of_token(a, first + i, h, states[i], states[i + 1], grad, sums);
}

}  // namespace

void run(Stream&, const SsdBackward& a) {
  const std::int64_t tokens = a.x_THP.size(0), heads = a.x_THP.size(1), width = a.x_THP.size(2);
  const std::int64_t groups = a.b_TGN.size(1), n_state = a.b_TGN.size(2);
  const std::int64_t chunks = chunks_of(a.seq_len, a.chunk);
  Sums sums;
  sums.db.assign(tokens * groups * n_state, 0);
  sums.dc.assign(tokens * groups * n_state, 0);
  for (std::int64_t h = 0; h < heads; ++h) {
    sums.a_log = sums.d = sums.dt_bias = 0;
    for (std::int64_t sequence = 0; sequence < tokens / a.seq_len; ++sequence) {
      std::vector<double> grad(width * n_state, 0);
      for (std::int64_t c = chunks - 1; c >= 0; --c)
        backward_of_chunk(a, sequence * a.seq_len + c * a.chunk, std::min(a.chunk, a.seq_len - c * a.chunk),
                          &a.states(sequence * chunks + c, h, 0, 0), h, grad, sums);
    }
    a.da_log_H(h) += static_cast<float>(sums.a_log);
    a.dd_H(h) += static_cast<float>(sums.d);
    a.ddt_bias_H(h) += static_cast<float>(sums.dt_bias);
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t n = 0; n < n_state; ++n) {
        a.db_TGN.set(static_cast<float>(sums.db[(t * groups + g) * n_state + n]), t, g, n);
        a.dc_TGN.set(static_cast<float>(sums.dc[(t * groups + g) * n_state + n]), t, g, n);
      }
}

}  // namespace nibble::ref
