// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/bench_device.h"
#include "models/parameters.h"
#include "ops/attention/attention_bench.h"
#include "ops/gemm/gemm_bench.h"
#include "ops/gemm/native.h"
#include "ops/quantize/quantize_bench.h"
#include "ops/ssm/ssd_bench.h"

namespace nibble::cuda {
namespace {

/// The products of every linear of the model, each shape once, and of its head.
std::vector<GemmCase> products_of(Stream& stream, const DecoderSpec& model, std::int64_t tokens) {
  std::vector<GemmCase> cases;
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const LinearInfo& l : linears(model)) {
    if (!seen.insert({l.n, l.k}).second) continue;
    std::vector<GemmCase::Operands> kinds = {GemmCase::Operands::Bf16};
    if (fp8_native(stream.device())) kinds.push_back(GemmCase::Operands::Fp8);
    for (const GemmCase::Operands operands : kinds)
      for (GemmCase& c : gemms_of_linear(l.kind, tokens, l.n, l.k, operands)) cases.push_back(std::move(c));
  }
  for (GemmCase& c : gemms_of_linear("head", 4096, model.vocab, model.d_model)) cases.push_back(std::move(c));
  return cases;
}

void print_products(Stream& stream, const DecoderSpec& model, std::int64_t tokens, Json& json) {
  fmt::print("\nmatrix products of {} tokens, TFLOP/s; best: the fastest of what the library proposes\n",
             tokens);
  fmt::print("  {:<28} {:>7} {:>7} {:>7} {:>8} {:>8} {:>6}\n", "GEMM", "M", "N", "K", "TFLOP/s", "best",
             "place");
  for (const GemmRate& r : measure_gemms(stream, products_of(stream, model, tokens), 0.05)) {
    const double best = r.best_seconds > 0 ? r.gemm.flops() / r.best_seconds : 0;
    fmt::print("  {:<28} {:>7} {:>7} {:>7} {:>8.0f} {:>8.0f} {:>6}\n", r.gemm.name, r.gemm.M, r.gemm.N,
               r.gemm.K, r.flops_per_s() * 1e-12, best * 1e-12, r.best);
    json["device_products"].push_back({{"name", r.gemm.name},
                                       {"m", r.gemm.M},
                                       {"n", r.gemm.N},
                                       {"k", r.gemm.K},
                                       {"tflops", r.flops_per_s() * 1e-12},
                                       {"best_tflops", best * 1e-12}});
  }
}

void print_quantizers(Stream& stream, Json& json) {
  constexpr std::int64_t kRows = 16384, kCols = 8192;
  fmt::print("\nquantisers, BF16 source [{}, {}], bytes that must be moved over the rate of a copy\n", kRows,
             kCols);
  fmt::print("  {:<60} {:>9} {:>7} {:>7}\n", "operand", "us", "TB/s", "share");
  for (const QuantizeKernelRate& r : measure_quantize_kernels(stream, kRows, kCols, 4)) {
    fmt::print("  {:<60} {:>9.1f} {:>7.2f} {:>5.0f} %\n", r.name, r.seconds * 1e6, r.bytes_per_s() * 1e-12,
               100 * r.share());
    json["device_quantizers"].push_back({{"name", r.name},
                                         {"seconds", r.seconds},
                                         {"bytes", r.bytes},
                                         {"copy_bytes_per_s", r.copy_bytes_per_s}});
  }
}

void print_mixers(Stream& stream, Json& json) {
  fmt::print("\nattention, TFLOP/s of the causal half\n");
  for (const AttentionRate& r : measure_attention(stream, 1)) {
    fmt::print("  {:<28} forward {:>6.0f} ({}), backward {:>6.0f} ({})\n", r.name,
               r.forward_flops_per_s() * 1e-12, r.forward_engine, r.backward_flops_per_s() * 1e-12,
               r.backward_engine);
    json["device_attention"].push_back(
        {{"name", r.name}, {"forward_s", r.forward_seconds}, {"backward_s", r.backward_seconds}});
  }
  fmt::print("\nMamba-2 layer of hybrid-1b, ms and TB/s of the bytes that must be moved\n");
  for (const SsdRate& r : measure_ssd(stream, 1)) {
    fmt::print("  {:<36} forward {:>7.3f} ms {:>5.2f} TB/s, backward {:>7.3f} ms {:>5.2f} TB/s\n", r.name,
               r.forward_seconds * 1e3, r.forward_bytes_per_s() * 1e-12, r.backward_seconds * 1e3,
               r.backward_bytes_per_s() * 1e-12);
    json["device_ssm"].push_back(
        {{"name", r.name}, {"forward_s", r.forward_seconds}, {"backward_s", r.backward_seconds}});
  }
}

}  // namespace

void print_kernels(Stream& stream, const DecoderSpec& model, std::int64_t tokens, bool quantizers,
                   bool products, Json& json) {
  if (quantizers) print_quantizers(stream, json);
  if (!products) return;
  print_products(stream, model, tokens, json);
  print_mixers(stream, json);
}

}  // namespace nibble::cuda
