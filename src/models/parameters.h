// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec.h"
#include "recipe/resolve.h"

namespace nibble {

/// How a parameter starts. `scale` is the standard deviation of Normal and the bound of Uniform.
enum class InitKind : std::uint8_t {
  Ones,
  Zeros,
  Normal,   ///< N(0, scale^2)
  Uniform,  ///< U(-scale, scale)
  ALog,     ///< ln U(1, 16)
  DtBias,   ///< dt + ln(-expm1(-dt)), dt = max(exp(U(ln 0.001, ln 0.1)), 1e-4): softplus of it is dt
};

struct ParamInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  InitKind init = InitKind::Zeros;
  double scale = 0;
  bool decay = false;  ///< weight decay: two or more dimensions, and never A_log, D, dt_bias, norms, biases
  bool is_matmul =
      false;  ///< a matrix that tokens are multiplied by: linears and the head, not the embedding lookup
  std::int64_t size() const;
};

/// Every parameter, in the order of the flat buffers: embedding, sublayers, final norm, head (absent when
/// tied). Init: N(0, sigma); outputs into the residual stream sigma / sqrt(number of residual adds), which is
/// sigma / sqrt(2 L) for Llama and sigma / sqrt(L) for a hybrid; convolution U(+-1/sqrt(kernel)). [MEGATRON]
/// [MAMBA2]
std::vector<ParamInfo> parameters(const DecoderSpec& spec);

/// Number of parameters, a tied head counted once.
std::int64_t param_count(const DecoderSpec& spec);

/// Every linear of the blocks, in order of execution; two a sublayer (Megatron's count): attention.qkv,
/// attention.out; mlp.up, mlp.down; mamba.in, mamba.out.
std::vector<LinearInfo> linears(const DecoderSpec& spec);

/// Throws Error{Usage} when this model cannot have the recipe's formats of attention: it has no attention, or
/// their blocks do not divide its heads or a sequence.
void check_attention(const Recipe& recipe, const DecoderSpec& spec, std::int64_t sequence);

}  // namespace nibble
