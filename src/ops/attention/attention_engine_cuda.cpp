// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "ops/attention/attention_cuda.h"

namespace nibble::cuda {
namespace {

// Sequences and heads below these are tests and toys: not worth a plan of cuDNN, and no note either.
constexpr std::int64_t kFusedLength = 128, kFusedWidth = 32;
// The deterministic backward pass of cuDNN writes dS as BF16 [sequences, heads, S, S] into its workspace
// (Hopper; 2 GiB for four sequences of 4096 tokens and 16 heads). So it is run on as many sequences and
// groups of heads at a time as stay below this: one sequence of that size still fills the card four times
// over.
constexpr std::int64_t kWorkspaceLimit = std::int64_t{512} << 20;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// The largest divisor of n that is at most `most`, and at least 1.
std::int64_t divisor_below(std::int64_t n, std::int64_t most) {
  std::int64_t d = std::clamp<std::int64_t>(most, 1, n);
  while (n % d != 0) --d;
  return d;
}

/// What one call of a plan covers.
struct Share {
  std::int64_t sequences, groups;
};

Share share_of(bool stores_ds, std::int64_t sequences, std::int64_t groups, std::int64_t heads,
               std::int64_t seq_len) {
  if (!stores_ds) return {sequences, groups};
  const std::int64_t of_head = round_up(seq_len, 64) * round_up(seq_len, 128) * 2;
  const std::int64_t heads_fit = kWorkspaceLimit / of_head;
  if (heads_fit >= heads) return {divisor_below(sequences, heads_fit / heads), groups};
  return {1, divisor_below(groups, heads_fit / (heads / groups))};
}

template <class View>
FusedShape::Strides strides_of(const View& v) {
  return {v.stride(0), v.stride(1)};
}

/// Why cuDNN is not asked about this view; empty: it may be.
template <class View>
std::string unfit(std::string_view name, const View& v) {
  if (v.dtype() != DType::BF16) return fmt::format("{} is not BF16", name);
  if (reinterpret_cast<std::uintptr_t>(v.data()) % 16 != 0 || v.stride(0) % 8 != 0 || v.stride(1) % 8 != 0)
    return fmt::format("rows of {} are not aligned to 16 bytes", name);
  return {};
}

template <class Args>
std::string unfit_inputs(const Args& a) {
  const std::int64_t width = a.q_THD.size(2);
  if (a.seq_len < kFusedLength) return fmt::format("sequences of {} tokens are short", a.seq_len);
  if (width < kFusedWidth || width % 8 != 0)
    return fmt::format("heads of {} channels: cuDNN takes multiples of 8 from {}", width, kFusedWidth);
  if (a.lse_HT.stride(1) != 1) return "the rows of lse are not contiguous";
  for (std::string why :
       {unfit("q", a.q_THD), unfit("k", a.k_TGD), unfit("v", a.v_TGD), unfit("out", a.out_THD)})
    if (!why.empty()) return why;
  return {};
}
std::string unfit_all(const Attention& a) { return unfit_inputs(a); }
std::string unfit_all(const AttentionBackward& a) {
  for (std::string why : {unfit_inputs(a), unfit("dout", a.dout_THD), unfit("dq", a.dq_THD),
                          unfit("dk", a.dk_TGD), unfit("dv", a.dv_TGD)})
    if (!why.empty()) return why;
  return {};
}

/// Whether the log-sum-exp must be copied into the order [sequence, head, token]. cuDNN writes it with any
/// strides, but reads it in that order only before 9.26.
bool packs_lse(const AttentionBackward& a) {
  return a.lse_HT.size(1) != a.seq_len || a.lse_HT.stride(0) != a.seq_len;
}

template <class Args>
FusedShape inputs_of(bool backward, const Args& a, Share share) {
  const std::int64_t heads = a.q_THD.size(1), groups = a.k_TGD.size(1);
  return {.backward = backward,
          .sequences = share.sequences,
          .seq_len = a.seq_len,
          .heads = heads / groups * share.groups,
          .groups = share.groups,
          .width = a.q_THD.size(2),
          .scale = a.scale,
          .q = strides_of(a.q_THD),
          .k = strides_of(a.k_TGD),
          .v = strides_of(a.v_TGD),
          .out = strides_of(a.out_THD)};
}
template <class Args>
Share share_of(bool stores_ds, const Args& a) {
  return share_of(stores_ds, a.q_THD.size(0) / a.seq_len, a.k_TGD.size(1), a.q_THD.size(1), a.seq_len);
}
Share share_of(const Attention& a) { return share_of(false, a); }
Share share_of(const AttentionBackward& a) { return share_of(a.repeatable, a); }
FusedShape shape_of(const Attention& a) {
  FusedShape s = inputs_of(false, a, share_of(a));
  s.lse_of_sequence = a.seq_len;
  s.lse_of_head = a.lse_HT.stride(0);
  return s;
}
FusedShape shape_of(const AttentionBackward& a) {
  FusedShape s = inputs_of(true, a, share_of(a));
  s.repeatable = a.repeatable;
  s.dout = strides_of(a.dout_THD);
  s.dq = strides_of(a.dq_THD);
  s.dk = strides_of(a.dk_TGD);
  s.dv = strides_of(a.dv_TGD);
  s.lse_of_sequence = s.heads * s.seq_len;
  s.lse_of_head = s.seq_len;
  return s;
}

/// The shapes that a note was printed for.
struct Notes {
  explicit Notes(CudaDevice&) {}
  std::set<FusedShape> printed;
};

struct Choice {
  const FusedPlan* plan = nullptr;  ///< null: our own kernels
  std::string why;                  ///< for these
};

template <class Args>
Choice choose(CudaDevice& device, const Args& a) {
  std::string why = unfit_all(a);
  if (!why.empty()) return {nullptr, why};
  CudnnAttention& cudnn = device.attached<CudnnAttention>();
  if (cudnn.version().empty()) return {nullptr, cudnn.missing()};
  const FusedPlan& plan = cudnn.plan(shape_of(a));
  if (!plan.refusal.empty()) return {nullptr, plan.refusal};
  return {&plan, {}};
}

/// Training in BF16 without cuDNN is many times slower, so it is said, once a shape.
template <class Args>
void note(CudaDevice& device, const Args& a, const std::string& why) {
  if (a.q_THD.dtype() != DType::BF16 || a.seq_len < kFusedLength) return;
  const FusedShape shape = shape_of(a);
  if (!device.attached<Notes>().printed.insert(shape).second) return;
  fmt::print(stderr, "note: {} of {} tokens, {} heads of {} runs on nibble's own kernels, not on cuDNN: {}\n",
             shape.backward ? "attention backward" : "attention", a.seq_len, a.q_THD.size(1), shape.width,
             why);
}

template <class Args>
std::string engine(Stream& stream, const Args& a) {
  CudaDevice& device = cuda_device(stream);
  const Choice choice = choose(device, a);
  if (choice.plan == nullptr) return fmt::format("own ({})", choice.why);
  return fmt::format("cudnn {}", device.attached<CudnnAttention>().version());
}

template <class Args>
void check_own(const char* op, const Args& a) {
  const std::int64_t width = a.q_THD.size(2), rows = a.q_THD.size(0) * a.q_THD.size(1);
  check(width <= kOwnWidth, "{}: heads of {} channels; the cuda backend computes up to {}", op, width,
        kOwnWidth);
  check(rows < std::int64_t{1} << 31, "{}: {} tokens times heads are too many for one launch", op, rows);
}

/// The bytes of element [token, head, 0].
template <class View>
auto* at(const View& v, std::int64_t token, std::int64_t head) {
  using Void = decltype(v.data());
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Void>>, const char, char>;
  return static_cast<Byte*>(v.data()) + 2 * (token * v.stride(0) + head * v.stride(1));
}

}  // namespace

std::string attention_engine(Stream& stream, const Attention& a) { return engine(stream, a); }
std::string attention_engine(Stream& stream, const AttentionBackward& a) { return engine(stream, a); }

void run(Stream& stream, const Attention& a) {
  if (a.q_THD.numel() == 0) return;
  const Choice choice = choose(cuda_device(stream), a);
  if (choice.plan == nullptr) {
    note(cuda_device(stream), a, choice.why);
    check_own("attention", a);
    return own_attention(stream, a);
  }
  const ArenaScope scope(stream.scratch());
  choice.plan->execute({.q = a.q_THD.data(),
                        .k = a.k_TGD.data(),
                        .v = a.v_TGD.data(),
                        .out = a.out_THD.data(),
                        .lse = a.lse_HT.data()},
                       stream.scratch().take_bytes(choice.plan->workspace));
}

void run(Stream& stream, const AttentionBackward& a) {
  if (a.q_THD.numel() == 0) return;
  const Choice choice = choose(cuda_device(stream), a);
  if (choice.plan == nullptr) {
    note(cuda_device(stream), a, choice.why);
    check_own("attention_backward", a);
    return own_attention(stream, a);
  }
  const ArenaScope scope(stream.scratch());
  const std::int64_t tokens = a.q_THD.size(0), heads = a.q_THD.size(1), groups = a.k_TGD.size(1);
  float* lse = const_cast<float*>(a.lse_HT.data());  // only read
  if (packs_lse(a)) {
    lse = stream.scratch().take<float>(heads * tokens).data();
    pack_lse(stream, a.lse_HT, a.seq_len, lse);
  }
  void* workspace = stream.scratch().take_bytes(choice.plan->workspace);
  const Share share = share_of(a);
  for (std::int64_t b = 0; b < tokens / a.seq_len; b += share.sequences)
    for (std::int64_t g = 0; g < groups; g += share.groups) {
      const std::int64_t t = b * a.seq_len, h = g * (heads / groups);
      choice.plan->execute({.q = at(a.q_THD, t, h),
                            .k = at(a.k_TGD, t, g),
                            .v = at(a.v_TGD, t, g),
                            .out = const_cast<char*>(at(a.out_THD, t, h)),
                            .lse = lse + (b * heads + h) * a.seq_len,
                            .dout = at(a.dout_THD, t, h),
                            .dq = at(a.dq_THD, t, h),
                            .dk = at(a.dk_TGD, t, g),
                            .dv = at(a.dv_TGD, t, g)},
                           workspace);
    }
}

}  // namespace nibble::cuda
