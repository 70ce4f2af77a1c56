// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <random>

#include "base/error.h"
#include "cli/bench_device.h"
#include "cli/cli.h"
#include "cli/environment.h"
#include "cli/selftest/gpu.h"
#include "io/file.h"
#include "io/json.h"
#include "models/flops.h"
#include "models/parameters.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/quantize/quantize_bench.h"
#include "plan/hardware.h"
#include "train/learner.h"
#include "train/quant_monitor.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  MachineOptions machine;
  std::string model = "hybrid-tiny", json, hardware;
  std::int64_t batch = 8, micro_batch = 0, sequence = 256, vocab = 0, blocks = 0, steps = 30;
  Recomputation recompute = Recomputation::None;
  bool repeatable = true;
  std::string tune_gemms, gemm_tuning, residual_gradient = "fp32", logits = "fp32";
  std::vector<std::string> recipes = {"fp32", "bf16", "nvfp4"};
  bool quantizers = true, products = true, training = true, telemetry = false;
};

struct StepRate {
  std::string recipe;
  double ms = 0, tokens_per_s = 0, gflops = 0;
  double first_step_s = 0;  ///< memory, library plans and start values included
  double memory_gib = 0;    ///< of the device, while steps run; 0 on the host
  double mfu = 0;           ///< of the device's BF16 peak; 0 where none is known
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Dense BF16 peak that MFU is quoted against: that of the planner's row whose name stands in the card's
/// ("NVIDIA H200"); 0 for a card that the table lacks, and on the host.
double bf16_peak_gflops(BackendKind backend) {
  if (backend != BackendKind::Cuda || !cuda::kBuilt) return 0;
  std::string card = cuda::kGpuName();
  std::transform(card.begin(), card.end(), card.begin(), [](unsigned char c) { return std::tolower(c); });
  double peak = 0;
  std::size_t longest = 0;
  for (const Hardware& h : hardware_table())
    if (h.name.size() > longest && card.find(h.name) != std::string::npos) {
      longest = h.name.size();
      peak = h.bf16.dense * 1e3;
    }
  return peak;
}

/// The recipe as the options have it stored.
Recipe treatment(const Options& o, const std::string& recipe) {
  const Recipe named = find_recipe(recipe);
  check_usage(
      o.residual_gradient == "fp32" || named.base != Format::Fp32,
      "--residual-gradient bf16 needs activations in BF16, and recipe {} has them in FP32; leave it out of "
      "--recipes",
      recipe);
  return edited(named, {.residual_gradient = format_from_name(o.residual_gradient),
                        .logits = format_from_name(o.logits)});
}

/// Median step of `recipe` on random tokens, optimizer and clipping included, the first ten left out. A
/// device with a queue gets its next step while it computes, as in training. `observed`: every step is
/// measured by telemetry, all layers and statistics, and its events are made and dropped.
StepRate measure_step(const Options& o, Stream& stream, const DecoderSpec& model, const std::string& recipe,
                      bool observed = false) {
  const std::int64_t tokens = o.batch * o.sequence;
  const Clock::time_point made = Clock::now();
  Learner learner(stream, {.model = model,
                           .recipe = treatment(o, recipe),
                           .optimizer = {},
                           .schedule = {.peak = 1e-4, .steps = 1 << 20},
                           .sequence = o.sequence,
                           .batch = o.batch,
                           .micro_batch = o.micro_batch > 0 ? o.micro_batch : o.batch,
                           .recompute = o.recompute,
                           .seed = 1,
                           .sr_seed = 1,
                           .repeatable = o.repeatable});
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens) + 1);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(model.vocab));
  const View<const std::int32_t> in(ids.data(), tokens), out(ids.data() + 1, tokens);
  constexpr std::int64_t kWarmup = 10;
  const int queue = stream.kind() == BackendKind::Cuda ? 1 : 0;
  StepRate rate{.recipe = recipe};
  std::vector<double> times;
  QuantMonitor monitor(stream.device(), {}, {});
  Sink nobody;
  QuantMonitor* const observer = observed ? &monitor : nullptr;
  const auto finish = [&] {
    learner.finish();
    if (observed) monitor.finish_step(learner.steps_done(), nobody);
  };
  learner.begin(in, out, observer);
  finish();
  rate.first_step_s = seconds_since(made);
  Clock::time_point last = Clock::now();
  for (std::int64_t i = 1; i < kWarmup + o.steps + queue; ++i) {
    learner.begin(in, out, observer);
    if (learner.in_flight() <= queue) continue;
    finish();
    if (i >= kWarmup) times.push_back(seconds_since(last));
    last = Clock::now();
  }
  while (learner.in_flight() > 0) finish();
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const double median = times[times.size() / 2];
  rate.ms = median * 1e3;
  rate.tokens_per_s = static_cast<double>(tokens) / median;
  rate.gflops = flops_per_token(model, o.sequence).total() * rate.tokens_per_s * 1e-9;
  rate.memory_gib = static_cast<double>(stream.device().bytes_in_use()) / (1 << 30);
  const double peak = bf16_peak_gflops(stream.kind());
  if (peak > 0) rate.mfu = rate.gflops / peak;
  return rate;
}

/// GFLOP/s of one matrix product on the host with the operand layouts of the three GEMMs of a linear.
double measure_product(Stream& stream, Gemm gemm, DType type, std::int64_t t, std::int64_t n,
                       std::int64_t k) {
  Arena arena(stream.device());
  const RealView x = arena.take_real(type, t, k), w = arena.take_real(type, n, k),
                 dy = arena.take_real(type, t, n);
  for (const RealView& v : {x, w, dy}) {
    std::vector<float> memory(static_cast<std::size_t>(v.numel()));
    const RealView host(memory.data(), type, v.layout());
    for (std::int64_t i = 0; i < v.size(0); ++i)
      for (std::int64_t j = 0; j < v.size(1); ++j)
        host.set(static_cast<float>((i * 7 + j * 13) % 17 - 8), i, j);
    stream.device().copy_from_host(v.data(), memory.data(),
                                   static_cast<std::size_t>(v.numel()) * size_of(type));
  }
  const RealView y = arena.take_real(type, t, n), dx = arena.take_real(type, t, k);
  const View<float> dw = arena.take<float>(n, k);
  const MatMul product = gemm == Gemm::Fprop ? MatMul{.a_MK = x, .b_NK = w, .c_MN = y}
                         : gemm == Gemm::Dgrad
                             ? MatMul{.a_MK = dy, .b_NK = w.transposed(), .c_MN = dx}
                             : MatMul{.a_MK = dy.transposed(), .b_NK = x.transposed(), .c_MN = dw};
  double best = 1e30;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < 3 || seconds_since(begin) < 0.3; ++i) {
    const Clock::time_point start = Clock::now();
    matmul(stream, product);
    best = std::min(best, seconds_since(start));
  }
  return 2e-9 * static_cast<double>(t * n * k) / best;
}

/// One thread, so that the figures are per core: memcpy is, too. Out of cache is what a large model's tensors
/// are; in cache is what a small model's are.
void print_quantizers(BackendKind backend, Json& json) {
  HostDevice host;
  Stream one(backend, host, 1);
  struct Place {
    const char* name;
    std::int64_t rows, cols;
  };
  for (const Place& place : {Place{"out of cache", 16384, 2048}, Place{"in cache", 512, 512}}) {
    fmt::print("\nquantisers {}: BF16 source [{}, {}], GB/s of source bytes on one thread, amax given\n",
               place.name, place.rows, place.cols);
    fmt::print("  {:<42} {:>8} {:>8} {:>7}\n", "operand", "GB/s", "memcpy", "share");
    for (const QuantizeRate& r : measure_quantizers(one, place.rows, place.cols, 5.0)) {
      fmt::print("  {:<42} {:>8.2f} {:>8.2f} {:>5.0f} %\n", r.name, r.bytes_per_s * 1e-9,
                 r.memcpy_per_s * 1e-9, 100 * r.share());
      json["quantizers"].push_back({{"name", r.name},
                                    {"place", place.name},
                                    {"bytes_per_s", r.bytes_per_s},
                                    {"memcpy_bytes_per_s", r.memcpy_per_s}});
    }
  }
}

void print_products(Stream& stream, const Options& o, const DecoderSpec& model, Json& json) {
  const std::int64_t t = o.batch * o.sequence;
  std::vector<LinearInfo> all = linears(model);
  const LinearInfo& largest = *std::max_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.n * a.k < b.n * b.k; });
  fmt::print("\nmatrix products of {} (T = {}, N = {}, K = {}), GFLOP/s\n", largest.name, t, largest.n,
             largest.k);
  fmt::print("  {:<8} {:>9} {:>9}\n", "GEMM", "bf16", "fp32");
  for (Gemm g : kGemms) {
    const double bf16 = measure_product(stream, g, DType::BF16, t, largest.n, largest.k);
    const double fp32 = measure_product(stream, g, DType::F32, t, largest.n, largest.k);
    fmt::print("  {:<8} {:>9.1f} {:>9.1f}\n", name(g), bf16, fp32);
    json["products"].push_back({{"gemm", name(g)},
                                {"t", t},
                                {"n", largest.n},
                                {"k", largest.k},
                                {"bf16_gflops", bf16},
                                {"fp32_gflops", fp32}});
  }
}

void print_steps(Stream& stream, const Options& o, const DecoderSpec& model, Json& json) {
  fmt::print("\ntraining step of {}: {} parameters, {} x {} random tokens, median of {} steps after 10\n",
             o.model, param_count(model), o.batch, o.sequence, o.steps);
  fmt::print("  {:<14} {:>10} {:>12} {:>10} {:>14} {:>7} {:>7} {:>8}\n", "recipe", "ms", "tokens/s",
             "GFLOP/s", "x bf16's time", "MFU %", "GiB", "first s");
  std::vector<StepRate> rates;
  for (const std::string& r : o.recipes) rates.push_back(measure_step(o, stream, model, r));
  const auto bf16 =
      std::find_if(rates.begin(), rates.end(), [](const StepRate& r) { return r.recipe == "bf16"; });
  for (const StepRate& r : rates) {
    const double ratio = bf16 == rates.end() ? 0 : r.ms / bf16->ms;
    fmt::print("  {:<14} {:>10.2f} {:>12.0f} {:>10.1f} {:>14.3f} {:>7.1f} {:>7.1f} {:>8.1f}\n", r.recipe,
               r.ms, r.tokens_per_s, r.gflops, ratio, 100 * r.mfu, r.memory_gib, r.first_step_s);
    json["steps"].push_back({{"recipe", r.recipe},
                             {"ms", r.ms},
                             {"tokens_per_s", r.tokens_per_s},
                             {"mfu", r.mfu},
                             {"memory_gib", r.memory_gib},
                             {"first_step_s", r.first_step_s}});
  }
}

/// The step without telemetry and with all of it: what a measured step costs, and what that is of the run
/// when every 10th, 25th or 100th step is measured.
void print_telemetry(Stream& stream, const Options& o, const DecoderSpec& model, Json& json) {
  fmt::print(
      "\ntelemetry of {}: every layer, GEMM, operand and statistic, {} x {} random tokens, median of {} "
      "steps\n",
      o.model, o.batch, o.sequence, o.steps);
  fmt::print("  {:<14} {:>10} {:>12} {:>9} | {:>26}\n", "recipe", "step, ms", "measured, ms", "ratio",
             "share of the run, in %, at");
  fmt::print("  {:<14} {:>10} {:>12} {:>9} | {:>8} {:>8} {:>8}\n", "", "", "", "", "1 in 10", "1 in 25",
             "1 in 100");
  for (const std::string& r : o.recipes) {
    const double plain = measure_step(o, stream, model, r).ms,
                 observed = measure_step(o, stream, model, r, true).ms;
    const auto share = [&](int every) { return 100 * (observed - plain) / (every * plain); };
    fmt::print("  {:<14} {:>10.2f} {:>12.2f} {:>9.2f} | {:>8.2f} {:>8.2f} {:>8.2f}\n", r, plain, observed,
               observed / plain, share(10), share(25), share(100));
    json["telemetry"].push_back(
        {{"recipe", r}, {"ms", plain}, {"measured_ms", observed}, {"percent_at_every_100", share(100)}});
  }
}

/// One step of every recipe shows the device its products; their algorithms are measured and chosen.
void tune(Stream& stream, const Options& o, const DecoderSpec& model) {
  for (const std::string& recipe : o.recipes) {
    Options few = o;
    few.steps = 1;
    measure_step(few, stream, model, recipe);
  }
  const GemmTuning tuning = tune_gemms(stream);
  write_file(o.tune_gemms, tuning.text());
  fmt::print("GEMM algorithms: {} products take another than the library's first; written to {}\n",
             tuning.choices.size(), o.tune_gemms);
}

/// Measured ceilings of the host: what its threads multiply, what one of them copies.
Hardware host_ceilings(Stream& stream) {
  constexpr std::int64_t kT = 2048, kN = 3072, kK = 768;
  double gflops = 0;
  for (Gemm g : kGemms) gflops = std::max(gflops, measure_product(stream, g, DType::BF16, kT, kN, kK));
  Stream one(stream.kind(), stream.device(), 1);
  const double copied = measure_quantizers(one, 16384, 2048, 2.0).front().memcpy_per_s;
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  Hardware h;
  h.name = processor_name();
  h.summary = fmt::format("measured by nibble bench, {} threads", stream.pool().threads());
  h.bf16 = {.dense = gflops * 1e-3, .sparse = 0, .achieved = 1};
  h.memory_gb = h.usable_gb = memory * 1e-9;
  h.bandwidth_tb = 2 * copied * 1e-12;  // a copy reads and writes
  h.source =
      fmt::format("nibble bench: BF16 product {} x {} x {}; memcpy of 64 MiB on one thread", kT, kN, kK);
  return h;
}

Hardware card_ceilings(Stream& stream) {
  check(cuda::kBuilt, "this build has no cuda backend");
  const Gpu gpu = cuda::kDescribeGpu(stream);
  const GpuRates rates = cuda::kMeasureGpu(stream);
  Hardware h;
  h.name = gpu.name;
  h.summary = "measured by nibble bench --backend cuda";
  h.bf16 = {.dense = rates.bf16_flops_per_s * 1e-12, .sparse = 0, .achieved = 1};
  if (rates.fp8_flops_per_s > 0) h.fp8 = {.dense = rates.fp8_flops_per_s * 1e-12, .sparse = 0, .achieved = 1};
  h.memory_gb = static_cast<double>(gpu.memory) * 1e-9;
  h.usable_gb = static_cast<double>(gpu.available) * 1e-9;
  h.bandwidth_tb = rates.copy_bytes_per_s * 1e-12;
  h.source = "nibble bench: products 8192 x 8192 x 8192; copy of 256 MiB in the card's memory";
  return h;
}

/// In the form that `nibble plan --hardware FILE.toml` reads.
void write_hardware(const std::string& path, Stream& stream) {
  Hardware h = stream.kind() == BackendKind::Cuda ? card_ceilings(stream) : host_ceilings(stream);
  h.copy_fraction = 1;
  h.achieved_source = h.source;
  check_hardware(h);
  write_file(path, to_toml(h));
  fmt::print("\nceilings: BF16 products {:.0f} GFLOP/s, copy {:.1f} GB/s read and written; written to {}\n",
             h.bf16.dense * 1e3, h.bandwidth_tb * 1e3, path);
}

ExitCode run(const Options& o) {
  Workplace here(o.machine);
  Stream& stream = here.stream;
  ModelFields fields = find_preset(o.model).fields;
  if (o.vocab > 0) fields.vocab_size = o.vocab;
  if (o.blocks > 0) fields.blocks = o.blocks;
  const DecoderSpec model = make_spec(fields);
  check_usage(o.sequence <= model.max_seq, "--sequence {}: {} takes {} tokens", o.sequence, o.model,
              model.max_seq);
  for (const std::string& recipe : o.recipes) treatment(o, recipe);  // refused before anything is measured
  if (!o.gemm_tuning.empty()) use_gemm_tuning(stream.device(), GemmTuning::parse(read_file(o.gemm_tuning)));
  Json json{{"model", o.model}};
  for (const auto& [label, value] : environment_of(stream.kind(), std::max(o.machine.threads, 0))) {
    fmt::print("{:<24} {}\n", label, value);
    json["environment"][label] = value;
  }
  if (stream.kind() == BackendKind::Cuda) {
    cuda::kPrintKernels(stream, model, o.batch * o.sequence, o.quantizers, o.products, json);
  } else {
    if (o.quantizers) print_quantizers(stream.kind(), json);
    if (o.products) print_products(stream, o, model, json);
  }
  if (!o.tune_gemms.empty()) tune(stream, o, model);
  if (o.training) print_steps(stream, o, model, json);
  if (o.telemetry) print_telemetry(stream, o, model, json);
  if (!o.hardware.empty()) write_hardware(o.hardware, stream);
  if (!o.json.empty()) write_json(o.json, json);
  return 0;
}

}  // namespace

Verb add_bench(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("--model", o->model, "Preset whose training step is timed")->capture_default_str();
  app.add_option("--vocab", o->vocab, "Vocabulary instead of the preset's; 0: the preset's")
      ->capture_default_str();
  app.add_option("--blocks", o->blocks,
                 "Blocks instead of the preset's, for a model that does not fit; 0: the preset's")
      ->capture_default_str();
  app.add_option("--residual-gradient", o->residual_gradient,
                 "fp32 or bf16, as precision.residual_gradient; not of recipe fp32")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--logits", o->logits, "fp32 or bf16, as precision.logits")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--batch", o->batch, "Sequences of a step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--sequence", o->sequence, "Tokens of a sequence")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", o->steps, "Steps that are timed")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batch", o->micro_batch, "Sequences at a time; 0: all of a step at once")
      ->capture_default_str();
  app.add_option("--recompute", o->recompute, "none, light or block: what backward computes again")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Recomputation>{
          {"none", Recomputation::None}, {"light", Recomputation::Light}, {"block", Recomputation::Block}}));
  app.add_flag("!--not-repeatable", o->repeatable,
               "Let attention's backward pass on cuda add in any order, which is faster");
  app.add_option(
      "--tune-gemms", o->tune_gemms,
      "Measure the library's GEMM algorithms for this model's products, take the fastest, and write the "
      "choices to this file, for --gemm-tuning and training.gemm_tuning");
  app.add_option("--gemm-tuning", o->gemm_tuning, "Take the choices of this file");
  app.add_option("--recipes", o->recipes, "Recipes to time, each beside bf16")
      ->capture_default_str()
      ->delimiter(',');
  app.add_flag("!--no-quantizers", o->quantizers, "Leave the quantisers out");
  app.add_flag("!--no-products", o->products, "Leave the matrix products out");
  app.add_flag("!--no-steps", o->training, "Leave the training steps out");
  app.add_flag("--telemetry", o->telemetry, "Also: the training step with and without telemetry");
  app.add_option("--hardware", o->hardware,
                 "Measure this machine's ceilings and write them to this file, for `nibble plan --hardware`");
  app.add_option("--json", o->json, "Also write the figures to this file");
  add_machine_options(app, o->machine);
  app.footer("Speeds are quoted beside their own baseline from the same binary and run.");
  return with_formats_bench(app, with_verdict_bench(app, with_report_bench(app, [o] { return run(*o); })));
}

}  // namespace nibble
