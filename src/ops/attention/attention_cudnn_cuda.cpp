// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <unordered_map>
#include <vector>

#include "ops/attention/attention_cuda.h"

#ifdef NIBBLE_WITH_CUDNN

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <dlfcn.h>

// The headers ask for this variable and look every function of the library up in it. It is written once, by
// open_library below.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace nibble::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// Tensors are called by these numbers when a plan is executed.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

// Before 9.12 cuDNN ignores the strides that we give the log-sum-exp.
constexpr std::size_t kOldest = 91200;
// Before 9.16 the headers mend sequences that are no multiple of 128 by copies from host memory at every
// call, which a recorded step cannot hold.
constexpr std::size_t kAnyLength = 91600;

/// Why the library cannot be opened; empty when it is open.
std::string open_library() {
  static const std::string why = [] {
    // The headers look for the CUDA runtime of version 12 first; we mean the one this binary runs with.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(),
           0);
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle != nullptr) return std::string();
    return fmt::format("{}; put its folder into LD_LIBRARY_PATH", dlerror());
  }();
  return why;
}

Tensor tensor(fe::graph::Graph& graph, Uid uid, const FusedShape& s, std::int64_t heads,
              FusedShape::Strides strides) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({s.sequences, heads, s.seq_len, s.width})
                          .set_stride({s.seq_len * strides.token, strides.head, strides.token, 1}));
}

void describe_output(const Tensor& t, Uid uid, const FusedShape& s, std::int64_t heads,
                     FusedShape::Strides strides) {
  t->set_output(true)
      .set_uid(uid)
      .set_dim({s.sequences, heads, s.seq_len, s.width})
      .set_stride({s.seq_len * strides.token, strides.head, strides.token, 1});
}

std::vector<std::int64_t> lse_dim(const FusedShape& s) { return {s.sequences, s.heads, s.seq_len, 1}; }
std::vector<std::int64_t> lse_stride(const FusedShape& s) { return {s.lse_of_sequence, s.lse_of_head, 1, 1}; }

/// What cuDNN calls stats is the natural logarithm of the sum of exponentials of the scaled scores: what the
/// op calls lse.
void describe_forward(fe::graph::Graph& graph, const FusedShape& s) {
  const Tensor q = tensor(graph, kQ, s, s.heads, s.q), k = tensor(graph, kK, s, s.groups, s.k),
               v = tensor(graph, kV, s, s.groups, s.v);
  const auto made = graph.sdpa(q, k, v,
                               fe::graph::SDPA_attributes()
                                   .set_name("attention")
                                   .set_generate_stats(true)
                                   .set_causal_mask(true)
                                   .set_attn_scale(s.scale));
  describe_output(made[0], kOut, s, s.heads, s.out);
  made[1]
      ->set_output(true)
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(lse_dim(s))
      .set_stride(lse_stride(s));
}

void describe_backward(fe::graph::Graph& graph, const FusedShape& s) {
  const Tensor q = tensor(graph, kQ, s, s.heads, s.q), k = tensor(graph, kK, s, s.groups, s.k),
               v = tensor(graph, kV, s, s.groups, s.v), out = tensor(graph, kOut, s, s.heads, s.out),
               dout = tensor(graph, kDout, s, s.heads, s.dout);
  const Tensor lse = graph.tensor(Tensor_attributes()
                                      .set_uid(kLse)
                                      .set_data_type(fe::DataType_t::FLOAT)
                                      .set_dim(lse_dim(s))
                                      .set_stride(lse_stride(s)));
  const auto made = graph.sdpa_backward(q, k, v, out, dout, lse,
                                        fe::graph::SDPA_backward_attributes()
                                            .set_name("attention_backward")
                                            .set_causal_mask(true)
                                            .set_attn_scale(s.scale)
                                            .set_deterministic_algorithm(s.repeatable));
  describe_output(made[0], kDq, s, s.heads, s.dq);
  describe_output(made[1], kDk, s, s.groups, s.dk);
  describe_output(made[2], kDv, s, s.groups, s.dv);
}

}  // namespace

struct CudnnAttention::State {
  std::string version, missing;
  CudaDevice* device = nullptr;
  cudnnHandle_t handle = nullptr;
  std::map<FusedShape, FusedPlan> plans;

  ~State() {
    plans.clear();
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }

  /// Opens the library and a handle that issues to the device's stream; says why not.
  std::string open() {
    const std::string closed = open_library();
    if (!closed.empty()) return closed;
    const std::size_t v = fe::detail::get_backend_version();
    const std::string name = fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
    if (v < kOldest) return fmt::format("cuDNN {} is too old, 9.12 is needed", name);
    cudnnStatus_t status = fe::detail::create_handle(&handle);
    if (status == CUDNN_STATUS_SUCCESS) status = fe::detail::set_stream(handle, device->stream());
    if (status != CUDNN_STATUS_SUCCESS)
      return fmt::format("cuDNN {} does not start: {}", name, fe::detail::get_error_string(status));
    version = name;
    return {};
  }

  FusedPlan build(const FusedShape& s) {
    FusedPlan plan;
    if (s.seq_len % 128 != 0 && fe::detail::get_backend_version() < kAnyLength) {
      plan.refusal = "cuDNN before 9.16 wants sequences of a multiple of 128 tokens";
      return plan;
    }
    const auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    s.backward ? describe_backward(*graph, s) : describe_forward(*graph, s);
    std::int64_t workspace = 0;
    fe::error_t status = graph->build(handle, {fe::HeurMode_t::A});
    if (status.is_good()) status = graph->get_workspace_size(workspace);
    if (status.is_bad()) {
      plan.refusal = fmt::format("cuDNN {} refuses: {}", version, status.get_message());
      return plan;
    }
    plan.workspace = static_cast<std::size_t>(workspace);
    plan.execute = [graph, backward = s.backward, to = handle](const FusedPointers& p, void* space) {
      const auto mutable_of = [](const void* x) { return const_cast<void*>(x); };
      std::unordered_map<std::int64_t, void*> at = {
          {kQ, mutable_of(p.q)}, {kK, mutable_of(p.k)}, {kV, mutable_of(p.v)}, {kOut, p.out}, {kLse, p.lse}};
      if (backward) at.insert({{kDout, mutable_of(p.dout)}, {kDq, p.dq}, {kDk, p.dk}, {kDv, p.dv}});
      fe::error_t done = graph->execute(to, at, space);
      check(done.is_good(), "{}: cuDNN says: {}", backward ? "attention_backward" : "attention",
            done.get_message());
    };
    return plan;
  }
};

CudnnAttention::CudnnAttention(CudaDevice& device) : state_(std::make_unique<State>()) {
  state_->device = &device;
  try {
    state_->missing = state_->open();
  } catch (const std::exception& e) {  // a function that the library lacks
    state_->missing = e.what();
  }
}

const FusedPlan& CudnnAttention::plan(const FusedShape& shape) {
  const auto found = state_->plans.find(shape);
  if (found != state_->plans.end()) return found->second;
  check(!state_->device->recording(),
        "attention: a shape that was not computed before came up while a step is recorded");
  FusedPlan made;
  try {
    made = state_->build(shape);
  } catch (const std::exception& e) {
    made = FusedPlan{.refusal = fmt::format("cuDNN {}: {}", state_->version, e.what())};
  }
  return state_->plans.emplace(shape, std::move(made)).first->second;
}

#else  // NIBBLE_WITH_CUDNN

namespace nibble::cuda {

struct CudnnAttention::State {
  std::string version, missing = "this binary was built without cuDNN";
  FusedPlan plan;
};

CudnnAttention::CudnnAttention(CudaDevice&) : state_(std::make_unique<State>()) {
  state_->plan.refusal = state_->missing;
}
const FusedPlan& CudnnAttention::plan(const FusedShape&) { return state_->plan; }

#endif  // NIBBLE_WITH_CUDNN

CudnnAttention::~CudnnAttention() = default;
const std::string& CudnnAttention::version() const { return state_->version; }
const std::string& CudnnAttention::missing() const { return state_->missing; }

}  // namespace nibble::cuda
