// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/cuda/cuda_device.h"
#include "ops/attention/attention.h"

/// Two engines compute attention on a GPU: cuDNN's fused kernels for the shapes that training in BF16
/// has, and our own kernels for everything else. Which one is a function of shape, storage and library alone.
namespace nibble::cuda {

/// "cudnn 9.19.0", or "own (why)". Builds the plan on first sight of a shape, so not while a step is
/// recorded.
std::string attention_engine(Stream& stream, const Attention& a);
std::string attention_engine(Stream& stream, const AttentionBackward& a);

/// Our own kernels: FP32 arithmetic, any strides, heads of up to kOwnWidth channels, fewer than 2^31 tokens
/// times heads (the caller checks); the same bits twice.
inline constexpr std::int64_t kOwnWidth = 256;
void own_attention(Stream& stream, const Attention& a);
void own_attention(Stream& stream, const AttentionBackward& a);

/// packed[b, h, s] = lse_HT[h, b * seq_len + s]
void pack_lse(Stream& stream, View<const float> lse_HT, std::int64_t seq_len, float* packed);

/// What a plan of cuDNN depends on. Everything is BF16 but the log-sum-exp; strides count elements.
struct FusedShape {
  struct Strides {
    std::int64_t token = 0, head = 0;
    friend auto operator<=>(const Strides&, const Strides&) = default;
  };
  bool backward = false;
  bool repeatable = true;
  std::int64_t sequences = 0, seq_len = 0, heads = 0, groups = 0, width = 0;
  float scale = 1;
  Strides q, k, v, out, dout, dq, dk, dv;             ///< the last four in backward only
  std::int64_t lse_of_sequence = 0, lse_of_head = 0;  ///< strides of the log-sum-exp
  friend auto operator<=>(const FusedShape&, const FusedShape&) = default;
};

struct FusedPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr;  ///< written forward, read backward
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

struct FusedPlan {
  std::string refusal;        ///< why cuDNN will not; empty: it will
  std::size_t workspace = 0;  ///< bytes
  std::function<void(const FusedPointers&, void* workspace)> execute;
};

/// cuDNN as far as it is needed here, attached to the device. The library is opened at run time.
class CudnnAttention {
 public:
  explicit CudnnAttention(CudaDevice& device);
  ~CudnnAttention();
  /// "9.19.0", or empty when there is no library; `missing` then says why.
  const std::string& version() const;
  const std::string& missing() const;
  /// Builds it when the shape is new: heuristics only, nothing is timed, so every run chooses the same.
  const FusedPlan& plan(const FusedShape& shape);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::cuda
