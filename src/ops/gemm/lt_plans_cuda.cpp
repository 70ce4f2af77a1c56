// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/lt_plans_cuda.h"

#include <algorithm>

#include "backend/cuda/stopwatch.h"
#include "base/error.h"
#include "numeric/random_key.h"

namespace nibble::cuda {
namespace {

/// What NVIDIA advises for Hopper and Blackwell.
constexpr std::size_t kWorkspace = std::size_t{32} << 20;
constexpr int kProposals = 16;
/// A proposal must be this much faster than an earlier one to be worth leaving the library's order.
constexpr double kWorthwhile = 0.98;

using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, LtDestroy<cublasLtMatmulPreferenceDestroy>>;

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  lt_check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
           "asking cuBLASLt for an algorithm");
}

std::size_t bytes_of(const LtMatrix& m) {
  return static_cast<std::size_t>(m.ld * m.cols * bits_of(m.type) / 8);
}

/// Memory of random bytes whose numbers are finite and not large in every format, nor negative as a scale.
Buffer random_operand(CudaDevice& device, std::size_t bytes) {
  constexpr std::size_t kPattern = 1 << 16;
  std::vector<std::uint8_t> pattern(kPattern);
  const RandomKey key{.seed = 1, .step = 1};
  for (std::size_t i = 0; i < kPattern; ++i) pattern[i] = random_byte(key, i) & 0x3Fu;
  Buffer buffer(device, bytes);
  for (std::size_t at = 0; at < bytes; at += kPattern)
    device.copy_from_host(buffer.as<std::uint8_t>() + at, pattern.data(), std::min(kPattern, bytes - at));
  return buffer;
}

}  // namespace

LtPlans::LtPlans(CudaDevice& device)
    : device_(&device), workspace_(device, kWorkspace), beta_(device, 2 * sizeof(float)) {
  cublasLtHandle_t handle = nullptr;
  lt_check(cublasLtCreate(&handle), "starting cuBLASLt");
  handle_.reset(handle);
  const float betas[] = {0, 1};
  device.copy_from_host(beta_.data(), betas, sizeof(betas));
}

std::vector<cublasLtMatmulAlgo_t> LtPlans::ask(const LtProduct& p, const LtDescription& description) const {
  cublasLtMatmulPreference_t made = nullptr;
  lt_check(cublasLtMatmulPreferenceCreate(&made), "asking cuBLASLt for an algorithm");
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of a split sum stay in FP32 and are added in a fixed order; the other schemes add in the type of
  // the result.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(p.a.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(p.b.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(p.d.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(p.d.alignment));
  cublasLtMatmulHeuristicResult_t found[kProposals] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), description.product(), description.a(), description.b(), description.d(),
      description.d(), preference.get(), kProposals, found, &count);
  std::vector<cublasLtMatmulAlgo_t> proposals;
  // What cannot be multiplied is an answer and not a mistake: our own kernel takes it, or the op refuses.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return proposals;
  lt_check(status, "asking cuBLASLt for an algorithm");
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) proposals.push_back(found[i].algo);
  return proposals;
}

LtPlans::Plan& LtPlans::plan(const LtProduct& p) {
  if (const auto found = plans_.find(p); found != plans_.end()) return found->second;
  Plan made{LtDescription(p), {}, 0};
  // The library wants to see that there are scales and a bias; the numbers do not matter yet.
  const auto* placeholder = workspace_.as<float>();
  made.description.point_at(p, {.bias = placeholder, .a_scale = placeholder, .b_scale = placeholder});
  made.proposals = ask(p, made.description);
  if (const auto tuned = tuning_.find(p); tuned != tuning_.end()) {
    made.chosen = static_cast<std::size_t>(tuned->second);
    check_usage(made.chosen < made.proposals.size(),
                "gemm tuning: choice {} of a product for which cuBLASLt proposes {}; measure again",
                made.chosen, made.proposals.size());
  }
  return plans_.emplace(p, std::move(made)).first->second;
}

cublasStatus_t LtPlans::issue(const LtProduct& p, Plan& plan, std::size_t proposal, const LtPointers& at) {
  plan.description.point_at(p, at);
  const float host_beta = p.accumulate ? 1.0f : 0.0f;
  const void* alpha = &at.alpha;
  const void* beta = &host_beta;
  if (p.alpha_on_device) {
    alpha = at.device_alpha;
    beta = beta_.as<float>() + (p.accumulate ? 1 : 0);
  }
  const LtDescription& d = plan.description;
  return cublasLtMatmul(handle_.get(), d.product(), alpha, at.a, d.a(), at.b, d.b(), beta, at.d, d.d(), at.d,
                        d.d(), &plan.proposals[proposal], workspace_.data(), kWorkspace, device_->stream());
}

bool LtPlans::run(const LtProduct& p, const LtPointers& at) {
  Plan& chosen = plan(p);
  // The library proposes algorithms that it then refuses to run (FP8 under cuBLASLt 13.0): the next one in
  // its order is taken, in every run the same.
  for (; chosen.chosen < chosen.proposals.size(); ++chosen.chosen) {
    const cublasStatus_t status = issue(p, chosen, chosen.chosen, at);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) lt_check(status, "multiplying matrices");
  }
  return false;
}

std::vector<double> LtPlans::measure(const LtProduct& p, double seconds) {
  check(!device_->recording(), "products cannot be measured while a step is recorded");
  Plan& measured = plan(p);
  const Buffer a = random_operand(*device_, bytes_of(p.a)), b = random_operand(*device_, bytes_of(p.b));
  const Buffer d(*device_, bytes_of(p.d));
  // Scales of blocks take at most a byte for every 16 elements in tiles of 128 rows: less than the operand
  // and one tile row. The bias has one number a row of the result.
  const std::size_t scale_bytes =
      std::max(bytes_of(p.a), bytes_of(p.b)) + 1024 * static_cast<std::size_t>(p.a.ld);
  const Buffer scales =
      random_operand(*device_, scale_bytes + static_cast<std::size_t>(p.d.rows) * sizeof(float));
  const LtPointers at{.a = a.data(),
                      .b = b.data(),
                      .d = d.data(),
                      .device_alpha = beta_.as<float>() + 1,
                      .bias = scales.as<float>(),
                      .a_scale = scales.data(),
                      .b_scale = scales.data()};
  Stopwatch watch(*device_);
  std::vector<double> best;
  for (std::size_t i = 0; i < measured.proposals.size(); ++i) {
    double fastest = 1e30, spent = 0;
    // The first two runs warm the caches and the clock up.
    for (int run = 0; run < 5 || spent * kProposals < seconds; ++run) {
      watch.start();
      if (issue(p, measured, i, at) != CUBLAS_STATUS_SUCCESS) break;
      const double took = watch.stop();
      spent += took;
      if (run >= 2) fastest = std::min(fastest, took);
    }
    best.push_back(fastest);
  }
  return best;
}

std::string LtPlans::machine() const {
  return fmt::format("cublasLt {} sm {} multiprocessors {}", cublasLtGetVersion(),
                     device_->compute_capability(), device_->multiprocessors());
}

void LtPlans::use(const GemmTuning& tuning) {
  check_usage(tuning.machine == machine(),
              "gemm tuning was measured with \"{}\", but this is \"{}\"; measure again, or run without it",
              tuning.machine, machine());
  check(plans_.empty(), "gemm tuning must be given before the first product");
  tuning_ = tuning.choices;
}

GemmTuning LtPlans::tune(double seconds) {
  GemmTuning tuning{machine(), {}};
  for (auto& entry : plans_) {
    const std::vector<double> times = measure(entry.first, seconds);
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < times.size(); ++i)
      if (times[i] < kWorthwhile * times[chosen]) chosen = i;
    entry.second.chosen = chosen;
    if (chosen != 0) tuning.choices[entry.first] = static_cast<int>(chosen);
  }
  return tuning;
}

}  // namespace nibble::cuda

namespace nibble {
namespace {

CudaDevice& cuda_of(Device& device) {
  check_usage(device.kind() == BackendKind::Cuda, "gemm tuning is for the cuda backend");
  return static_cast<CudaDevice&>(device);
}

}  // namespace

void use_gemm_tuning(Device& device, const GemmTuning& tuning) {
  cuda_of(device).attached<cuda::LtPlans>().use(tuning);
}
GemmTuning tune_gemms(Stream& stream, double seconds) {
  return cuda_of(stream.device()).attached<cuda::LtPlans>().tune(seconds);
}

}  // namespace nibble
