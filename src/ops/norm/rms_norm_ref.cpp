// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/rms_norm.h"

#include <cmath>
#include <vector>

#include "quant/amax.h"

namespace nibble::ref {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void find_amax(const RealView& y_TD, float* amax) {
  if (amax == nullptr) return;
  *amax = 0;
  for (std::int64_t t = 0; t < y_TD.size(0); ++t)
    for (std::int64_t d = 0; d < y_TD.size(1); ++d) *amax = amax_keeping_nan(*amax, y_TD.get(t, d));
}

}  // namespace

void run(Stream&, const RmsNorm& n) {
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  for (std::int64_t t = 0; t < T; ++t) {
    double sum = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const double x = n.x_TD.get(t, d);
      sum += x * x;
    }
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(D) + n.eps);
    n.rstd_T(t) = static_cast<float>(rstd);
    for (std::int64_t d = 0; d < D; ++d)
      n.y_TD.set(static_cast<float>(n.x_TD.get(t, d) * rstd * n.w_D(d)), t, d);
  }
  find_amax(n.y_TD, n.amax);
}

void run(Stream& stream, const AddRmsNorm& n) {
  for (std::int64_t t = 0; t < n.x_TD.size(0); ++t)
    for (std::int64_t d = 0; d < n.x_TD.size(1); ++d) n.sum_TD.set(n.x_TD.get(t, d) + n.y_TD.get(t, d), t, d);
  run(stream, RmsNorm{.x_TD = n.sum_TD,
                      .w_D = n.w_D,
                      .y_TD = n.normed_TD,
                      .rstd_T = n.rstd_T,
                      .eps = n.eps,
                      .amax = n.amax});
}

void run(Stream&, const RmsNormBackward& n) {
  const std::int64_t T = n.x_TD.size(0), D = n.x_TD.size(1);
  std::vector<double> dw(static_cast<std::size_t>(D));
  for (std::int64_t t = 0; t < T; ++t) {
    const double rstd = n.rstd_T(t);
    double mean = 0;
    for (std::int64_t d = 0; d < D; ++d)
      mean += static_cast<double>(n.dy_TD.get(t, d)) * n.w_D(d) * n.x_TD.get(t, d) * rstd;
    mean /= static_cast<double>(D);
    for (std::int64_t d = 0; d < D; ++d) {
      const double xhat = n.x_TD.get(t, d) * rstd, dy = n.dy_TD.get(t, d);
      const auto sum = static_cast<float>(n.dx_TD.get(t, d) + rstd * (dy * n.w_D(d) - xhat * mean));
      n.dx_TD.set(sum, t, d);
      if (!n.dx_copy_TD.empty()) n.dx_copy_TD.set(sum, t, d);
      dw[static_cast<std::size_t>(d)] += dy * xhat;
    }
  }
  for (std::int64_t d = 0; d < D; ++d)
    n.dw_D(d) = static_cast<float>(n.dw_D(d) + dw[static_cast<std::size_t>(d)]);
  find_amax(n.dx_copy_TD.empty() ? n.dx_TD : n.dx_copy_TD, n.amax);
}

void run(Stream&, const GatedRmsNorm& n) {
  const std::int64_t T = n.y_TD.size(0), size = n.y_TD.size(1) / n.groups;
  std::vector<double> r(static_cast<std::size_t>(size));
  for (std::int64_t t = 0; t < T; ++t)
    for (int group = 0; group < n.groups; ++group) {
      double sum = 0;
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t d = group * size + i;
        const double z = n.z_TD.get(t, d), v = n.y_TD.get(t, d) * z * sigmoid(z);
        r[static_cast<std::size_t>(i)] = v;
        sum += v * v;
      }
      const double rstd = 1 / std::sqrt(sum / static_cast<double>(size) + n.eps);
      n.rstd_TG(t, group) = static_cast<float>(rstd);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t d = group * size + i;
        n.out_TD.set(static_cast<float>(r[static_cast<std::size_t>(i)] * rstd * n.w_D(d)), t, d);
      }
    }
  find_amax(n.out_TD, n.amax);
}

void run(Stream&, const GatedRmsNormBackward& n) {
  const std::int64_t T = n.y_TD.size(0), D = n.y_TD.size(1), size = D / n.groups;
  std::vector<double> dw(static_cast<std::size_t>(D));
  for (std::int64_t t = 0; t < T; ++t)
    for (int group = 0; group < n.groups; ++group) {
      const double rstd = n.rstd_TG(t, group);
      double mean = 0;
      for (std::int64_t d = group * size; d < (group + 1) * size; ++d) {
        const double z = n.z_TD.get(t, d), rhat = n.y_TD.get(t, d) * z * sigmoid(z) * rstd;
        mean += static_cast<double>(n.dout_TD.get(t, d)) * n.w_D(d) * rhat;
      }
      mean /= static_cast<double>(size);
      for (std::int64_t d = group * size; d < (group + 1) * size; ++d) {
        const double y = n.y_TD.get(t, d), z = n.z_TD.get(t, d), s = sigmoid(z);
        const double rhat = y * z * s * rstd, dout = n.dout_TD.get(t, d);
        const double dr = rstd * (dout * n.w_D(d) - rhat * mean);
        dw[static_cast<std::size_t>(d)] += dout * rhat;
        n.dy_TD.set(static_cast<float>(dr * z * s), t, d);
        n.dz_TD.set(static_cast<float>(dr * y * s * (1 + z * (1 - s))), t, d);
      }
    }
  for (std::int64_t d = 0; d < D; ++d)
    n.dw_D(d) = static_cast<float>(n.dw_D(d) + dw[static_cast<std::size_t>(d)]);
}

}  // namespace nibble::ref
