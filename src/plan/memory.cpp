// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <algorithm>

#include "plan/storage.h"

namespace nibble {
namespace {

constexpr double kContext = 1.5e9;       // CUDA context, cuBLAS, cuDNN and NCCL buffers
constexpr double kFragmentation = 0.04;  // what an allocator cannot give back, of everything else
constexpr double kLogitBytes = 6;        // BF16 logits and their FP32 softmax gradient

double bytes_of(Format f) { return f == Format::Fp32 ? 4 : storage(f).bytes_per_element(); }

double elements(const LinearWork& l) { return static_cast<double>(l.info.n) * static_cast<double>(l.info.k); }

bool eight_bits(Format f) { return is_quantized(f) && info(f).element_bits == 8; }

struct WeightBytes {
  double bf16 = 0;    ///< elements of linears that keep a BF16 copy, over all elements of linears
  double copies = 0;  ///< bytes of quantised copies, of all linears
};

/// Copies along K for fprop and along N for dgrad. FP8 with a tensor scale needs one where tensor cores read
/// either layout (Blackwell, which also has MXFP8). Eight-bit weights are gathered as they are and replace
/// the BF16 copy; four-bit ones are made from it. [MBRIDGE]
WeightBytes weight_bytes(const Workload& w, const Hardware& hardware) {
  WeightBytes out;
  double active = 0;
  for (const LinearWork& l : w.linears) {
    const Format f = l.resolved.fprop.b.format, d = l.resolved.dgrad.b.format;
    const bool one = f == d && info(f).block == 0 && hardware.native(Rate::Mxfp8);
    active += elements(l);
    if (is_quantized(f)) out.copies += elements(l) * bytes_of(f);
    if (is_quantized(d) && !one) out.copies += elements(l) * bytes_of(d);
    if (!eight_bits(f) || !eight_bits(d)) out.bf16 += elements(l);
  }
  out.bf16 /= active;
  out.copies *= w.linear_parameters / active;  // experts that a token does not visit are stored all the same
  return out;
}

/// Of an element of the input that a linear keeps as wgrad multiplies it: codes, or exact BF16 values where
/// the card emulates the product.
double kept_bytes(const LinearWork& l, const Hardware& hardware) {
  const Format f = l.resolved.wgrad.b.format;
  const Rate rate = rate_of(l.resolved.wgrad);
  const bool codes = rate != Rate::Bf16 && hardware.native(rate);
  return is_quantized(f) && !codes ? bytes_of(Format::Bf16) : bytes_of(f);
}

/// Whether the layer before this linear keeps the linear's input for its own backward, as attention and
/// squared ReLU keep their outputs.
bool has_kept_input(const Workload& w, const LinearWork& l) {
  return l.info.kind == "attention.out" || (l.info.kind == "mlp.down" && w.relu2_width > 0);
}

/// What linears keep for wgrad: a quantised operand is made in forward, in the reading of the input that
/// makes fprop's. In BF16 it is the input itself.
double linear_input_bytes(const Workload& w, Recompute recompute, const Hardware& hardware) {
  double bytes = 0;
  for (const LinearWork& l : w.linears) {
    const Format f = l.resolved.wgrad.b.format;
    const bool elsewhere = has_kept_input(w, l) || recompute == Recompute::Selective;
    if (is_quantized(f) || !elsewhere) bytes += static_cast<double>(l.info.k) * kept_bytes(l, hardware);
  }
  return bytes;
}

std::int64_t widest(const Workload& w) {
  std::int64_t n = 0;
  for (const LinearWork& l : w.linears) n = std::max(n, l.info.n);
  return n;
}

/// Activations and logits. Stage 0 of a pipeline holds pp micro-batches, the last stage the logits: the
/// larger counts.
void add_activations(const Workload& w, const ParallelLayout& l, const Hardware& hardware, Memory& m) {
  const double tokens = l.micro_tokens(), tp = static_cast<double>(l.tp);
  const double pp = static_cast<double>(l.pp), vp = static_cast<double>(l.vp);
  const double in_flight = l.pp == 1 ? 1 : 1 + (pp - 1) / (pp * vp);
  double layers = tokens * activation_bytes_per_token(w, l.recompute, hardware) / tp;
  const double in_head = l.head_chunk > 0 ? std::min(tokens, static_cast<double>(l.head_chunk)) : tokens;
  double logits = in_head * static_cast<double>(w.vocab) * kLogitBytes / tp;
  if (l.pp > 1) {
    const double first = layers * in_flight, last = layers / pp + logits;
    layers = first > last ? first : layers / pp;
    logits = first > last ? 0 : logits;
  }
  if (l.recompute == Recompute::Full) {
    layers += tokens * activation_bytes_per_token(w, Recompute::None, hardware) /
              static_cast<double>(w.blocks) / tp;
  }
  m.items.push_back({"activations", layers});
  m.items.push_back({"logits", logits});
  m.items.push_back({"gradient of the residual stream",
                     tokens * static_cast<double>(w.d_model) * w.residual_gradient_bytes / tp});
  m.items.push_back({"temporaries", 4 * tokens * static_cast<double>(widest(w)) / tp});
}

}  // namespace

double Memory::of(const std::string& name) const {
  for (const MemoryItem& item : items)
    if (item.name == name) return item.bytes;
  return 0;
}

double activation_bytes_per_token(const Workload& w, Recompute recompute, const Hardware& hardware) {
  const double d = static_cast<double>(w.d_model);
  if (recompute == Recompute::Full) return 2 * d * static_cast<double>(w.blocks);
  double bytes = linear_input_bytes(w, recompute, hardware);
  bytes += 2 * d * w.sublayers;                        // the residual stream, input of each norm
  bytes += 2 * (w.qkv_width + w.attention_width);      // q, k, v and the output
  bytes += 2 * (2 * w.swiglu_width + w.relu2_width);   // SwiGLU's input, squared ReLU's output
  bytes += 2 * (3 * w.scan_inner + 2 * w.conv_width);  // z, convolution in and out, scan out, gated norm
  bytes += 4 * w.scan_chunk;                           // states between chunks
  return bytes;
}

Memory memory_of(const Workload& w, const ParallelLayout& l, const Hardware& hardware) {
  Memory m;
  m.usable = hardware.usable_gb * 1e9;
  const double stored = w.linear_parameters, other = w.parameters - stored;
  const double expert_share = w.exact ? 1.0 : 1.0 / static_cast<double>(std::max<std::int64_t>(l.ep, 1));
  const double split = static_cast<double>(l.tp * l.pp), shards = static_cast<double>(l.shards());
  const double here = (other + stored * expert_share) / split;
  const double sharded = l.fsdp ? shards : 1;
  const WeightBytes copies = weight_bytes(w, hardware);
  m.items.push_back({"weights, BF16", 2 * (other + stored * expert_share * copies.bf16) / split / sharded});
  m.items.push_back({"weights, quantised copies", copies.copies * expert_share / split / sharded});
  // Two blocks are gathered at a time, weights and gradients.
  if (l.fsdp) m.items.push_back({"weights, gathered blocks", 8 * here / static_cast<double>(w.blocks)});
  m.items.push_back({"gradients, FP32", 4 * here / sharded});
  // Experts are spread over ep of the data-parallel GPUs already; their states divide by what is left.
  const double states = w.parameters / split / shards;
  m.items.push_back({"master weights, FP32", 4 * states});
  m.items.push_back({"optimizer moments, FP32", 8 * states});
  add_activations(w, l, hardware, m);
  m.items.push_back({"context and libraries", kContext});
  double sum = 0;
  for (const MemoryItem& item : m.items) sum += item.bytes;
  m.items.push_back({"fragmentation", kFragmentation * sum});
  m.total = sum * (1 + kFragmentation);
  return m;
}

std::optional<std::int64_t> largest_micro_batch(const Workload& work, ParallelLayout layout,
                                                const Hardware& hardware) {
  const std::int64_t most = layout.global_batch / layout.dp();
  for (std::int64_t b = most; b >= 1; --b) {
    layout.micro_batch = b;
    if (most % b == 0 && memory_of(work, layout, hardware).fits()) return b;
  }
  return std::nullopt;
}

}  // namespace nibble
