// SPDX-License-Identifier: Apache-2.0
#include "plan/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/storage.h"

namespace nibble {
namespace {

double real(std::int64_t v) { return static_cast<double>(v); }

/// Everything that one micro-batch costs on one GPU, and what a step costs once.
class Counter {
 public:
  Counter(const Workload& w, const ParallelLayout& l, const Hardware& h, const StepConstants& c)
      : w_(w), l_(l), h_(h), c_(c), tokens_(l.micro_tokens()), tp_(real(l.tp)), pp_(real(l.pp)) {}

  StepTime count() {
    products();
    other_compute();
    quantising();
    streaming();
    tensor_parallel();
    const double micro = sum();
    const double m = real(l_.micro_batches());
    for (TimeItem& item : out_.items) item.seconds *= m;
    once_a_step(micro, m);
    out_.seconds = sum();
    summarise();
    return out_;
  }

 private:
  void add(const std::string& name, double seconds, std::string note = "") {
    if (seconds > 0) out_.items.push_back({name, std::move(note), seconds});
  }
  double sum() const {
    double s = 0;
    for (const TimeItem& item : out_.items) s += item.seconds;
    return s;
  }
  double memory(double bytes) const { return bytes / h_.bytes_per_s(); }
  double traffic(double bytes, std::int64_t group, std::int64_t stride) const {
    return h_.collective_seconds(bytes, group, stride, c_.link_fraction);
  }
  /// How often the forward pass is computed.
  double forwards() const { return l_.recompute == Recompute::Full ? 2 : 1; }

  /// Seconds of a product [m, k] x [k, n], limited by arithmetic or by its BF16-sized result and operands.
  double product(double m, double n, double k, Rate r) const {
    const double element = r == Rate::Bf16 || !h_.native(r) ? 2 : r == Rate::Fp4 ? 0.5625 : 1;
    const double bytes = element * (m * k + n * k) + 2 * m * n;
    return std::max(2 * m * n * k / h_.flops(r), memory(bytes));
  }

  void products() {
    double seconds[4] = {};
    for (const LinearWork& l : w_.linears) {
      const double n = real(l.info.n) / tp_, k = real(l.info.k);
      for (const Gemm g : kGemms) {
        const Rate r = rate_of(l.resolved.gemm(g));
        const double t = g == Gemm::Fprop   ? product(tokens_, n, k, r) * forwards()
                         : g == Gemm::Dgrad ? product(tokens_, k, n, r)
                                            : product(n, k, tokens_, r);
        seconds[static_cast<int>(r)] += t / pp_;
      }
    }
    const double head = product(tokens_, real(w_.vocab) / tp_, real(w_.d_model), Rate::Bf16) * 3 / pp_;
    for (const Rate r : {Rate::Fp4, Rate::Mxfp8, Rate::Fp8}) {
      add(fmt::format("products, {}", name(r)), seconds[static_cast<int>(r)],
          h_.native(r) ? "" : "emulated: BF16 products over quantised values");
    }
    add("products, bf16", seconds[0]);
    add("head, bf16", head);
  }

  void other_compute() {
    const double peak = h_.bf16.dense * 1e12, sequence = real(l_.sequence);
    // Backward computes the scores again: 2 w T forward, 5 w T backward, beside the model's 2 + 4.
    const double attention = w_.attention_width * sequence * (2 * forwards() + 5);
    add("attention", tokens_ * attention / tp_ / pp_ / (peak * c_.attention_fraction));
    const double scan_bytes = 3 * (2 * 2 * w_.scan_inner + 2 * w_.conv_width + 4 * w_.scan_chunk);
    const double scan =
        std::max(w_.scan_flops() * (2 + forwards()) / 3 / (peak * c_.scan_fraction), memory(scan_bytes));
    add("scan", tokens_ * scan / tp_ / pp_);
  }

  bool emulated(const QuantSpec& spec) const { return !h_.native(rate_of({.a = spec, .b = spec})); }

  void quantising() {
    double activations = 0, weights = 0;
    for (const LinearWork& l : w_.linears) {
      const ResolvedLinear& r = l.resolved;
      const double n = real(l.info.n), k = real(l.info.k);
      activations += k * quantise_bytes(r.fprop.a, r.wgrad.b, emulated(r.fprop.a));
      activations += n * quantise_bytes(r.dgrad.a, r.wgrad.a, emulated(r.dgrad.a));
      weights += n * k * quantise_bytes(r.fprop.b, r.dgrad.b, emulated(r.fprop.b));
    }
    add("quantise activations and gradients", memory(tokens_ * activations / tp_ / pp_));
    // Weights change once a step, so their copies are made with the first micro-batch.
    add("quantise weights", memory(weights / tp_ / pp_) / real(l_.micro_batches()));
  }

  void streaming() {
    const double d = real(w_.d_model);
    double bytes = 18 * d * w_.sublayers * (1 + (forwards() - 1) * 8 / 18);  // norm and residual
    bytes += 8 * w_.qkv_width;                                               // rotary, forward and backward
    bytes += (10 + 6 * forwards()) * w_.swiglu_width + (6 + 4 * forwards()) * w_.relu2_width;
    bytes += 12 * w_.conv_width + 20 * w_.scan_inner;  // convolution; gate and its norm
    add("norms, activations, residual", memory(tokens_ * bytes / tp_ / pp_));
    add("loss", memory(tokens_ * real(w_.vocab) * 10 / tp_ / pp_));
    add("gaps between kernels", c_.gap_s * c_.kernels * w_.sublayers / pp_);
  }

  void tensor_parallel() {
    const double d = real(w_.d_model);
    // Gather and scatter in forward, the same and one more gather in backward, for each sublayer.
    const double bytes = 5 * tokens_ * d * 2 * w_.sublayers / pp_;
    add("tensor-parallel traffic, exposed", c_.tp_exposed * traffic(bytes, l_.tp, 1));
    if (w_.dispatch_width > 0 && l_.ep > 1) {
      const double all_to_all = 4 * 2 * tokens_ * w_.dispatch_width / pp_;
      add("expert traffic", traffic(all_to_all, l_.ep, 1));
    }
  }

  void once_a_step(double micro, double m) {
    const double here = w_.parameters / tp_ / pp_;
    if (l_.fsdp) {
      const double moved = traffic(here * (2 + 2 + 4), l_.shards(), l_.tp);
      add("sharded weights and gradients, exposed",
          m * (c_.dp_exposed * moved + std::max(0.0, (1 - c_.dp_exposed) * moved - micro)));
    } else {
      const double moved = traffic(here * (4 + 2), l_.shards(), l_.tp);
      add("gradient reduce-scatter and weight gather, exposed",
          c_.dp_exposed * moved + std::max(0.0, (1 - c_.dp_exposed) * moved - m * micro));
    }
    add("pipeline bubble", micro * (pp_ - 1) / real(l_.vp));
    add("optimizer", memory(here / real(l_.shards()) * 30),
        "reads gradient, master and both moments; writes all but the gradient");
  }

  void summarise() {
    const double gpus = real(l_.gpus), sequence = real(l_.sequence);
    const double tokens = real(l_.global_batch) * sequence;
    const double flops = w_.flops(sequence);
    out_.tokens_per_gpu_s = tokens / out_.seconds / gpus;
    out_.model_tflops = out_.tokens_per_gpu_s * flops * 1e-12;
    const RateShares shares = linear_shares(w_);
    double ideal = (flops - w_.linear_flops()) / h_.bf16.dense;
    for (const Rate r : kRates) {
      const double dense = h_.native(r) ? h_.rate(r).dense : h_.bf16.dense;
      ideal += w_.linear_flops() * shares.share[static_cast<int>(r)] / dense;
    }
    out_.mix_peak = flops / ideal;
    out_.mfu_bf16 = out_.model_tflops / h_.bf16.dense;
    out_.mfu_mix = out_.model_tflops / out_.mix_peak;
  }

  const Workload& w_;
  const ParallelLayout& l_;
  const Hardware& h_;
  const StepConstants& c_;
  double tokens_, tp_, pp_;
  StepTime out_;
};

}  // namespace

double StepTime::of(const std::string& name) const {
  for (const TimeItem& item : items)
    if (item.name == name) return item.seconds;
  return 0;
}

double quantise_bytes(const QuantSpec& row, const QuantSpec& column, bool emulated) {
  const auto out = [&](const QuantSpec& spec) {
    return is_quantized(spec.format) ? (emulated ? 2.0 : storage(spec.format).bytes_per_element()) : 0.0;
  };
  if (!is_quantized(row.format) && !is_quantized(column.format)) return 0;
  const bool amax = (is_quantized(row.format) && info(row.format).tensor_scale) ||
                    (is_quantized(column.format) && info(column.format).tensor_scale);
  return (amax ? 2.0 : 0.0) + 2.0 + out(row) + out(column);
}

StepTime step_time(const Workload& work, const ParallelLayout& layout, const Hardware& hardware,
                   const StepConstants& constants) {
  return Counter(work, layout, hardware, constants).count();
}

}  // namespace nibble
