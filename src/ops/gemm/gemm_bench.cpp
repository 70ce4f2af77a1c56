// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_bench.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "numeric/random_key.h"
#include "ops/gemm/coded_forms.h"
#include "quant/swizzle.h"
#ifdef NIBBLE_WITH_CUDA
#include "ops/gemm/gemm_bench_cuda.h"
#endif

namespace nibble {
namespace {

using Operands = GemmCase::Operands;

/// Seconds of one of several calls of f.
double seconds_of(Stream& stream, int runs, const std::function<void()>& f) {
#ifdef NIBBLE_WITH_CUDA
  if (stream.kind() == BackendKind::Cuda) return cuda::seconds_of(stream, runs, f);
#endif
  static_cast<void>(stream);
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < runs; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count() / runs;
}

/// The fastest of several measurements, after one call to warm up and one to see how long a call takes.
double fastest(Stream& stream, double budget, const std::function<void()>& f) {
  f();
  double best = seconds_of(stream, 1, f);
  constexpr int kMeasurements = 5;
  const int runs = std::clamp(static_cast<int>(budget / kMeasurements / std::max(best, 1e-7)), 1, 200);
  for (int i = 0; i < kMeasurements; ++i) best = std::min(best, seconds_of(stream, runs, f));
  return best;
}

/// Device memory of random numbers. What is multiplied matters: zeros draw less power, and clocks rise.
class RandomMemory {
 public:
  explicit RandomMemory(Device& device) : device_(&device) {
    for (std::size_t i = 0; i < kPattern; ++i) {
      const auto x = static_cast<float>(initial_normal(1, 1, i));
      wide_.push_back(x);
      narrow_.push_back(bf16::nearest(x));
      // Either sign and small magnitudes in every 8-bit format; any pair of E2M1 codes.
      codes_.push_back(random_byte({.seed = 1}, i) & 0xBFu);
      scales_.push_back(0x38);
    }
  }
  ConstRealView matrix(DType dtype, bool transposed, std::int64_t rows, std::int64_t cols) {
    if (transposed) return matrix(dtype, false, cols, rows).transposed();
    const void* p = dtype == DType::F32 ? fill(wide_, rows * cols) : fill(narrow_, rows * cols);
    return {p, dtype, Layout::contiguous(rows, cols)};
  }
  View<const std::uint8_t> codes(std::int64_t rows, std::int64_t cols) {
    return View<const std::uint8_t>(static_cast<const std::uint8_t*>(fill(codes_, rows * cols)), rows, cols);
  }
  View<const std::uint8_t> block_scales(std::int64_t rows, std::int64_t cols) {
    const std::int64_t count = swizzle_padded_rows(rows) * swizzle_padded_columns(cols);
    return View<const std::uint8_t>(static_cast<const std::uint8_t*>(fill(scales_, count)), count);
  }
  const float* number() { return static_cast<const float*>(fill(wide_, 1)); }
  RealView result(DType dtype, std::int64_t rows, std::int64_t cols) {
    buffers_.emplace_back(*device_, static_cast<std::size_t>(rows * cols) * size_of(dtype));
    return {buffers_.back().data(), dtype, Layout::contiguous(rows, cols)};
  }

 private:
  static constexpr std::size_t kPattern = 65521;  ///< a prime: rows do not repeat

  template <class T>
  const void* fill(const std::vector<T>& pattern, std::int64_t count) {
    const auto n = static_cast<std::size_t>(count);
    buffers_.emplace_back(*device_, n * sizeof(T));
    T* p = buffers_.back().template as<T>();
    for (std::size_t at = 0; at < n; at += kPattern)
      device_->copy_from_host(p + at, pattern.data(), std::min(kPattern, n - at) * sizeof(T));
    return p;
  }

  Device* device_;
  std::vector<float> wide_;
  std::vector<bf16> narrow_;
  std::vector<std::uint8_t> codes_, scales_;
  std::vector<Buffer> buffers_;
};

/// What a case issues, and what it asks the library for.
struct Work {
  std::function<void()> issue;
  std::optional<LtProduct> product;
};

template <class Args>
Work coded_work(Stream& stream, const Op<Args>& op, const Args& g) {
  return {[&stream, op, g] { op(stream, g); }, lt_product(coded(g))};
}

Work work_of(Stream& stream, const GemmCase& c, RandomMemory& memory) {
  const float beta = c.accumulate ? 1.0f : 0.0f;
  const RealView out = memory.result(c.result, c.M, c.N);
  switch (c.operands) {
    case Operands::Fp8:
      return coded_work(stream, matmul_fp8,
                        MatMulFp8{.a_MK = memory.codes(c.M, c.K),
                                  .b_NK = memory.codes(c.N, c.K),
                                  .a_scale = memory.number(),
                                  .b_scale = memory.number(),
                                  .c_MN = out,
                                  .beta = beta});
    case Operands::Fp4:
      return coded_work(stream, matmul_fp4,
                        MatMulFp4{.a_codes = memory.codes(c.M, c.K / 2),
                                  .b_codes = memory.codes(c.N, c.K / 2),
                                  .a_scales = memory.block_scales(c.M, c.K / 16),
                                  .b_scales = memory.block_scales(c.N, c.K / 16),
                                  .a_amax = memory.number(),
                                  .b_amax = memory.number(),
                                  .c_MN = out,
                                  .beta = beta});
    case Operands::Mxfp8:
      return coded_work(stream, matmul_mxfp8,
                        MatMulMxfp8{.a_codes = memory.codes(c.M, c.K),
                                    .b_codes = memory.codes(c.N, c.K),
                                    .a_scales = memory.block_scales(c.M, c.K / 32),
                                    .b_scales = memory.block_scales(c.N, c.K / 32),
                                    .c_MN = out,
                                    .beta = beta});
    default: {
      const DType type = c.operands == Operands::Fp32 ? DType::F32 : DType::BF16;
      const MatMul g{.a_MK = memory.matrix(type, c.a_transposed, c.M, c.K),
                     .b_NK = memory.matrix(type, c.b_transposed, c.N, c.K),
                     .c_MN = out,
                     .beta = beta};
      return {[&stream, g] { matmul(stream, g); }, lt_product(g)};
    }
  }
}

}  // namespace

std::vector<GemmCase> gemms_of_linear(std::string_view name, std::int64_t T, std::int64_t N, std::int64_t K,
                                      GemmCase::Operands operands) {
  const bool views = operands == Operands::Bf16 || operands == Operands::Fp32;
  const DType activation = operands == Operands::Fp32 ? DType::F32 : DType::BF16;
  GemmCase fprop{fmt::format("{} fprop", name), T, N, K, operands};
  GemmCase dgrad{fmt::format("{} dgrad", name), T, K, N, operands, false, views};
  GemmCase wgrad{fmt::format("{} wgrad", name), N, K, T, operands, views, views, DType::F32, true};
  fprop.result = dgrad.result = activation;
  return {fprop, dgrad, wgrad};
}

std::vector<GemmRate> measure_gemms(Stream& stream, const std::vector<GemmCase>& cases, double seconds) {
  std::vector<GemmRate> rates;
  for (const GemmCase& c : cases) {
    RandomMemory memory(stream.device());
    const Work work = work_of(stream, c, memory);
    GemmRate rate{.gemm = c};
    rate.seconds = fastest(stream, seconds, work.issue);
#ifdef NIBBLE_WITH_CUDA
    if (stream.kind() == BackendKind::Cuda && work.product)
      cuda::measure_proposals(stream, *work.product, seconds, rate);
#endif
    rates.push_back(rate);
  }
  return rates;
}

}  // namespace nibble
