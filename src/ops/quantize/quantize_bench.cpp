// SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "numeric/random_key.h"
#include "ops/quantize/quantize.h"

namespace nibble {
namespace {

/// Seconds of the fastest run of f within a time budget, after one to warm up.
template <class F>
double fastest(double budget, F f) {
  using Clock = std::chrono::steady_clock;
  f();
  double best = 1e30;
  const auto start = Clock::now();
  do {
    const auto before = Clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - before).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < budget);
  return best;
}

struct Case {
  const char* name;
  QuantSpec spec;
  bool transpose = false, codes = false, find_amax = false;
};

std::vector<Case> cases() {
  const QuantSpec rne{.format = Format::Nvfp4};
  const QuantSpec sr{.format = Format::Nvfp4, .rounding = Rounding::Stochastic};
  const QuantSpec square{.format = Format::Nvfp4, .tile = Tile::Square};
  const QuantSpec rht{.format = Format::Nvfp4, .rotation = 16};
  const QuantSpec rht_sr{.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .rotation = 16};
  return {{"nvfp4 1x16 rne", rne},
          {"nvfp4 1x16 rne, codes", rne, false, true},
          {"nvfp4 1x16 rne, with amax", rne, false, false, true},
          {"nvfp4 1x16 sr", sr},
          {"nvfp4 16x16 rne", square},
          {"nvfp4 16x16 rne, transposed", square, true},
          {"nvfp4 1x16 rht rne, transposed", rht, true},
          {"nvfp4 1x16 rht sr, transposed", rht_sr, true},
          {"nvfp4 1x16 rht sr, transposed, with amax", rht_sr, true, false, true},
          {"mxfp8 e4m3", {.format = Format::Mxfp8E4M3}},
          {"fp8 e4m3", {.format = Format::Fp8E4M3}},
          {"fp8 e5m2, transposed", {.format = Format::Fp8E5M2}, true}};
}

}  // namespace

std::vector<QuantizeRate> measure_quantizers(Stream& stream, std::int64_t rows, std::int64_t cols,
                                             double seconds) {
  const ArenaScope scope(stream.scratch());
  const std::int64_t padded = (std::max(rows, cols) + 15) / 16 * 16 * std::min(rows, cols);
  const View<bf16> x = stream.scratch().take<bf16>(rows, cols);
  bf16* values = stream.scratch().take<bf16>(padded).data();
  std::uint8_t* codes = stream.scratch().take<std::uint8_t>(padded).data();
  std::uint8_t* scales = stream.scratch().take<std::uint8_t>(padded).data();
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    x.data()[i] =
        bf16::nearest(static_cast<float>(initial_normal(1, 1, static_cast<std::uint64_t>(i % 65521))));
  }
  const double bytes = static_cast<double>(rows * cols) * sizeof(bf16);
  const std::vector<Case> all = cases();
  const double budget = seconds / static_cast<double>(all.size() + 1);
  const double copy =
      fastest(budget, [&] { std::memcpy(values, x.data(), static_cast<std::size_t>(bytes)); });

  std::vector<QuantizeRate> rates;
  const float amax_given = 4.5f;
  float amax = 0, scale = 0;
  for (const Case& c : all) {
    const QuantizedShape s = quantized_shape(c.spec, rows, cols, c.transpose);
    Quantize q{.x_RC = x, .spec = c.spec, .transpose = c.transpose, .random = {.seed = 1, .step = 1}};
    q.amax_given = c.find_amax ? nullptr : &amax_given;
    q.amax = &amax;
    q.scale = &scale;
    if (c.codes) {
      q.codes = View<std::uint8_t>(codes, s.rows, s.code_cols);
      q.scales = View<std::uint8_t>(scales, s.rows, s.scale_cols);
    } else {
      q.values = View<bf16>(values, s.rows, s.cols);
    }
    const double time = fastest(budget, [&] { quantize(stream, q); });
    rates.push_back({c.name, bytes / time, bytes / copy});
  }
  return rates;
}

}  // namespace nibble
