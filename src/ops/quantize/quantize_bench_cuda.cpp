// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <functional>

#include "backend/cuda/stopwatch.h"
#include "numeric/random_key.h"
#include "ops/quantize/quantize_bench.h"
#include "ops/quantize/quantize_pair.h"

namespace nibble::cuda {
namespace {

/// Seconds of one call: the fastest of several groups within a time budget, after one group to warm up. Calls
/// of a group follow one another without a gap.
double fastest(Stream& stream, double budget, const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  constexpr int kCalls = 4;
  Stopwatch watch(cuda_device(stream));
  double best = 1e30;
  const auto start = Clock::now();
  for (int group = 0; group < 2 || std::chrono::duration<double>(Clock::now() - start).count() < budget;
       ++group) {
    watch.start();
    for (int i = 0; i < kCalls; ++i) f();
    const double time = watch.stop() / kCalls;
    if (group > 0) best = std::min(best, time);
  }
  return best;
}

struct Case {
  std::string name;
  std::function<void()> run;
  double bytes;
};

/// The matrix, memory for two quantised copies, and the cases.
class Bench {
 public:
  Bench(Stream& stream, std::int64_t rows, std::int64_t cols)
      : stream_(stream),
        source_bytes_(static_cast<double>(rows * cols) * sizeof(bf16)),
        source_(stream.device(), static_cast<std::size_t>(rows * cols) * sizeof(bf16)),
        x_(source_.as<bf16>(), rows, cols),
        numbers_(stream.device(), 6 * sizeof(float)) {
    for (Buffer& copy : copies_) copy = Buffer(stream.device(), source_.bytes());
    const std::vector<bf16> values = draw(static_cast<std::size_t>(rows * cols));
    stream.device().copy_from_host(source_.data(), values.data(), source_.bytes());
    const float given[2] = {4.5f, 4.5f};
    stream.device().copy_from_host(numbers_.as<float>() + 4, given, sizeof(given));
    stream.device().synchronize();
  }

  void add(std::string name, const QuantSpec& spec, bool transpose, bool codes) {
    Quantize q{.x_RC = x_, .spec = spec, .transpose = transpose, .random = {.seed = 1, .step = 1}};
    const double written = place(0, q, quantized_shape(spec, x_.size(0), x_.size(1), transpose), codes);
    cases_.push_back({std::move(name), [this, q] { quantize(stream_, q); }, source_bytes_ + written});
  }

  void add_amax(std::string name, const QuantSpec& spec, bool transpose) {
    const Quantize q{.x_RC = x_,
                     .spec = spec,
                     .transpose = transpose,
                     .amax = numbers_.as<float>(),
                     .scale = numbers_.as<float>() + 1};
    cases_.push_back({std::move(name), [this, q] { quantize(stream_, q); }, source_bytes_});
  }

  void add_pair(std::string name, const QuantSpec& rows, const QuantSpec& transposed, bool codes,
                bool find_amax) {
    QuantizePair pair{.x_RC = x_};
    pair.rows.spec = rows;
    pair.transposed.spec = transposed;
    pair.rows.random = {.seed = 1, .step = 1};
    pair.transposed.random = {.seed = 1, .step = 1, .role = 1};
    double bytes = (find_amax ? 2 : 1) * source_bytes_;
    bytes += place(0, pair.rows, quantized_shape(rows, x_.size(0), x_.size(1), false), codes);
    bytes += place(1, pair.transposed, quantized_shape(transposed, x_.size(0), x_.size(1), true), codes);
    if (find_amax) pair.rows.amax_given = pair.transposed.amax_given = nullptr;
    cases_.push_back({std::move(name), [this, pair] { quantize_pair(stream_, pair); }, bytes});
  }

  std::vector<QuantizeKernelRate> measure(double seconds) {
    const double budget = seconds / static_cast<double>(cases_.size() + 1);
    Device& device = stream_.device();
    const double copy =
        fastest(stream_, budget, [&] { device.copy(copies_[0].data(), source_.data(), source_.bytes()); });
    std::vector<QuantizeKernelRate> rates;
    for (const Case& c : cases_)
      rates.push_back({c.name, fastest(stream_, budget, c.run), c.bytes, 2 * source_bytes_ / copy});
    return rates;
  }

 private:
  static std::vector<bf16> draw(std::size_t count) {
    constexpr std::size_t kDrawn = 65521;  // a prime: no two rows are equal
    std::vector<bf16> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] =
          i < kDrawn ? bf16::nearest(static_cast<float>(initial_normal(1, 1, i))) : values[i - kDrawn];
    return values;
  }

  /// Gives Quantize or QuantizePair::Copy the memory of a copy; returns the bytes that it writes there.
  template <class Args>
  double place(int copy, Args& args, const QuantizedShape& s, bool codes) {
    args.amax = numbers_.as<float>() + 2 * copy;
    args.scale = args.amax + 1;
    args.amax_given = numbers_.as<float>() + 4 + copy;
    const Buffer& memory = copies_[copy];
    if (!codes) {
      args.values = View<bf16>(memory.as<bf16>(), s.rows, s.cols);
      return static_cast<double>(s.rows * s.cols) * sizeof(bf16);
    }
    // Codes and scales of a byte or less an element fit into the memory of two-byte values.
    args.codes = View<std::uint8_t>(memory.as<std::uint8_t>(), s.rows, s.code_cols);
    if (s.scale_cols != 0)
      args.scales =
          View<std::uint8_t>(memory.as<std::uint8_t>() + s.rows * s.code_cols, s.rows, s.scale_cols);
    return static_cast<double>(s.rows * (s.code_cols + s.scale_cols));
  }

  Stream& stream_;
  double source_bytes_;
  Buffer source_;
  View<bf16> x_;
  Buffer numbers_;
  Buffer copies_[2];
  std::vector<Case> cases_;
};

}  // namespace

std::vector<QuantizeKernelRate> measure_quantize_kernels(Stream& stream, std::int64_t rows, std::int64_t cols,
                                                         double seconds) {
  const QuantSpec rne{.format = Format::Nvfp4};
  const QuantSpec sr{.format = Format::Nvfp4, .rounding = Rounding::Stochastic};
  const QuantSpec square{.format = Format::Nvfp4, .tile = Tile::Square};
  const QuantSpec four_over_six{
      .format = Format::Nvfp4, .four_over_six = FourOverSix::Mse, .scale_bound = 256};
  const QuantSpec rht{.format = Format::Nvfp4, .rotation = 16};
  const QuantSpec rht_sr{.format = Format::Nvfp4, .rounding = Rounding::Stochastic, .rotation = 16};
  Bench bench(stream, rows, cols);
  bench.add_amax("amax", rne, false);
  bench.add_amax("amax, rht transposed", rht, true);
  for (const bool codes : {false, true}) {
    const std::string out = codes ? ", codes" : "";
    bench.add("1x16 rne" + out, rne, false, codes);
    bench.add("1x16 sr" + out, sr, false, codes);
    bench.add("16x16 rne" + out, square, false, codes);
    bench.add("1x16 rne, four over six" + out, four_over_six, false, codes);
    bench.add("1x16 rht rne, transposed" + out, rht, true, codes);
    bench.add("1x16 rht sr, transposed" + out, rht_sr, true, codes);
    bench.add_pair("pair: 1x16 rne, rht rne transposed" + out, rne, rht, codes, false);
    bench.add_pair("pair: 1x16 rne, rht sr transposed" + out, rne, rht_sr, codes, false);
    bench.add_pair("pair: 1x16 sr, rht sr transposed" + out, sr, rht_sr, codes, false);
    bench.add_pair("pair: 1x16 sr, rht sr transposed, with both amaxes" + out, sr, rht_sr, codes, true);
  }
  bench.add("mxfp8 e4m3, codes", {.format = Format::Mxfp8E4M3}, false, true);
  const QuantSpec e4m3{.format = Format::Fp8E4M3}, e5m2{.format = Format::Fp8E5M2};
  for (const bool codes : {true, false}) {
    const std::string out = codes ? ", codes" : "";
    bench.add("fp8 e4m3" + out, e4m3, false, codes);
    bench.add("fp8 e5m2, transposed" + out, e5m2, true, codes);
    bench.add_pair("pair: fp8 e4m3, e4m3 transposed" + out, e4m3, e4m3, codes, false);
    bench.add_pair("pair: fp8 e5m2, e4m3 transposed, with amax" + out, e5m2, e4m3, codes, true);
  }
  return bench.measure(seconds);
}

}  // namespace nibble::cuda
